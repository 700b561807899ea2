# In ~/.bashrc: source <(perf-advisor completion)
_perf_advisor() {
    local words="@words" word=${COMP_WORDS[COMP_CWORD]}
    local last=${word##*,}
    [[ $word == -* ]] || case ${COMP_WORDS[COMP_CWORD-1]} in
        --only | --skip | --accept | recipes) words="@recipes" ;;
        --resume | open | compare | report | export) words=$(ls @folder 2>/dev/null | sed -n 's/[.]jsonl$//p') ;;
    esac
    COMPREPLY=($(compgen -P "${word%"$last"}" -W "$words" -- "$last"))
}
complete -o default -F _perf_advisor perf-advisor
