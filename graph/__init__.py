"""The graph: from a rollout's calls to a forest that says which tokens are worth training on, and why.

Data flows one way, and no module imports to its left:

    records → tokens, messages → replies → compactions → causes → drift → links → forks → forest
            → flow → roles → eligibility, findings → sequences, transitions → formats, view, surgery → saved
                                                                             → picture, bars

`records` are the values; `tokens` the trie over engine ids; `messages` the canonical chain; `forest` how calls hang
together; `roles` what each conversation was for; `findings` what a person should know; `sequences` the training
samples; `view` the JSON; `picture` and `bars` the drawings of the docs; `surgery` cuts seeds to resume from, `saved`
reads and writes the lines that they are kept in. All of it is pure: no sockets, no disk, no clock, and the same result
in whatever order the calls come.
"""
