# perf-advisor: add `eval "$(perf-advisor completion bash)"` to ~/.bashrc
_perf_advisor() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    COMPREPLY=()
    case $before in
@cases
        @takers) COMPREPLY=($(compgen -W "$(@sessions)" -- "$word")); return ;;
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W @options -- "$word"))
    elif ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W @commands -- "$word") $(compgen -f -X '!*.py' -- "$word"))
    fi
}
complete -o default -F _perf_advisor perf-advisor
