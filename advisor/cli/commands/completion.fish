complete -c perf-advisor -n __fish_use_subcommand -a @commands
complete -c perf-advisor -n "__fish_seen_subcommand_from @takers" -xa "(@sessions)"
complete -c perf-advisor -n "__fish_seen_subcommand_from recipes" -xa @recipes
@options
