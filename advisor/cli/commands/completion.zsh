# perf-advisor: add `eval "$(perf-advisor completion zsh)"` to ~/.zshrc, after compinit
autoload -U bashcompinit && bashcompinit
