use super::*;
use lockstep_model::Rules;

#[test]
fn flags_do_not_contradict_each_other() {
    Args::command().debug_assert();
}

#[test]
fn flags_of_the_connection_are_only_in_the_list_of_options() {
    let mut command = super::command();
    command.build();
    let status = command.find_subcommand_mut("status").unwrap();
    let help = status.render_long_help().to_string();
    assert!(help.contains(FLAGS_ELSEWHERE), "{help}");
    for flag in Args::command()
        .get_arguments()
        .filter_map(clap::Arg::get_long)
    {
        let flag = format!("--{flag}");
        assert!(!help.contains(&flag), "{help}");
        assert!(connection_help().contains(&flag), "{flag}");
    }
    let line = ["kubectl-lockstep", "describe", "llama", "--context", "prod"];
    assert!(super::command().try_get_matches_from(line).is_ok());
}

#[test]
fn every_flag_of_the_connection_is_passed_on_to_kubectl() {
    let command = Args::command();
    for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
        let (word, expected) = match flag {
            "insecure-skip-tls-verify" => (format!("--{flag}"), format!("--{flag}=true")),
            _ => (format!("--{flag}=2s"), format!("--{flag}=2s")),
        };
        let line = ["kubectl-lockstep", "get", &word];
        let matches = super::command().try_get_matches_from(line).unwrap();
        assert_eq!(Connection::words(&matches), [expected.as_str()], "{flag}");
    }
}

#[test]
fn every_verb_accepts_a_namespace() {
    for verb in Args::command().get_subcommands() {
        let mut flags = verb.get_arguments();
        let has = flags.any(|a| a.get_long() == Some("namespace") && a.get_short() == Some('n'));
        // `get` passes all arguments to kubectl.
        assert!(has || verb.get_name() == "get", "{}", verb.get_name());
    }
}

#[test]
fn without_flags_the_rules_are_the_defaults() {
    let args = Args::try_parse_from(["kubectl-lockstep", "whatif", "-f", "gang.yaml"]).unwrap();
    let Command::Whatif(args) = args.command else {
        panic!("whatif")
    };
    let mut rules = Rules::default();
    assert!(args.rules.change(&mut rules).is_empty() && rules == Rules::default());
}

#[test]
fn a_flag_that_says_otherwise_than_the_configuration_is_named() {
    let line = "kubectl-lockstep whatif -f g --order strict-priority --victims any";
    let args = Args::try_parse_from(line.split(' ')).unwrap();
    let Command::Whatif(args) = args.command else {
        panic!("whatif")
    };
    let mut rules = Rules::default();
    assert_eq!(args.rules.change(&mut rules), ["--victims"]);
    assert_eq!(rules.victims.scope, lockstep_model::VictimScope::Any);
}

#[test]
fn one_namespace_and_all_of_them_exclude_each_other() {
    for command in ["snapshot", "queue"] {
        let args = ["kubectl-lockstep", command, "-A", "-n", "ml"];
        assert!(Args::try_parse_from(args).is_err(), "{command}");
    }
}

#[test]
fn what_shows_objects_has_formats_and_what_shows_many_workloads_can_be_narrowed() {
    let command = Args::command();
    for (flags, verbs) in [
        (
            &["namespace", "all-namespaces", "selector"][..],
            "queue logs top",
        ),
        (
            &["output"],
            "status explain queue whatif top agents doctor version",
        ),
        (&["watch"], "queue status"),
    ] {
        for (verb, flag) in verbs
            .split(' ')
            .flat_map(|v| flags.iter().map(move |f| (v, f)))
        {
            let found = command.find_subcommand(verb).unwrap();
            let mut known = found.get_arguments();
            let there = known.any(|a| a.get_long() == Some(flag));
            assert!(there, "{verb} --{flag}");
        }
    }
}

#[test]
fn the_page_names_every_verb_and_every_flag_of_the_connection() {
    let page = include_str!("../../../../docs/cli.md");
    let command = Args::command();
    for verb in command.get_subcommands() {
        let name = verb.get_name();
        let named = [format!("`{name}`"), format!("`{name} ")];
        assert!(named.iter().any(|n| page.contains(n)), "{name}");
    }
    for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
        assert!(page.contains(&format!("--{flag}")), "{flag}");
    }
}

/// Every page of the documentation and the README: name and text.
fn pages() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), text)
    };
    found.into_iter().map(read).collect()
}

/// Commands in a text, without `kubectl lockstep`: lines of blocks, and spans of code.
fn commands_in(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (n, part) in text.split("```").enumerate() {
        if n % 2 == 1 {
            for line in part.lines() {
                let line = line.trim_start_matches("$ ");
                out.extend(line.strip_prefix("kubectl lockstep ").map(str::to_owned));
            }
            continue;
        }
        for span in part.split('`').skip(1).step_by(2) {
            let span = span.split_whitespace().collect::<Vec<_>>().join(" ");
            out.extend(span.strip_prefix("kubectl lockstep ").map(str::to_owned));
        }
    }
    out
}

#[test]
fn commands_are_found_in_blocks_and_in_spans() {
    let text = "say `kubectl lockstep\ntop -A`:\n```\n$ kubectl lockstep agents\nNODE\n```\n`kubectl get tw`";
    assert_eq!(commands_in(text), ["top -A", "agents"]);
}

/// What the program says of a command of a page, if that is not how it is called.
fn refused(command: &str) -> Option<String> {
    // What is beside the command: a pipe, a comment, words left out.
    let words = command
        .split(['|', '>', '#'])
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter(|w| *w != "...");
    let error = Args::try_parse_from(["kubectl-lockstep"].into_iter().chain(words)).err()?;
    // A verb alone names the verb.
    let incomplete = clap::error::ErrorKind::MissingRequiredArgument;
    let verb = !command.contains(' ');
    (!(verb && error.kind() == incomplete)).then(|| error.to_string())
}

#[test]
fn every_command_of_the_documentation_parses() {
    let mut seen = 0;
    for (page, text) in pages() {
        for command in commands_in(&text) {
            assert_eq!(refused(&command), None, "{page}: {command}");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} commands");
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    assert_eq!(refused("explain"), None);
    assert_eq!(refused("queue -A ... | grep llama"), None);
    for (command, said) in [
        ("queue --colour", "unexpected argument '--colour'"),
        ("lst", "unrecognized subcommand 'lst'"),
        ("explain -n ml", "required arguments were not provided"),
    ] {
        let found = refused(command).unwrap_or_default();
        assert!(found.contains(said), "{command}: {found}");
    }
}

/// How many flags the table of verbs of a page has, and those that their verb has not.
fn flags_of_table(page: &str) -> (usize, Vec<String>) {
    let command = Args::command();
    let (mut seen, mut unknown) = (0, Vec::new());
    for row in page.lines().filter(|l| l.starts_with("| `")) {
        let cell = row.split(" | ").next().unwrap_or_default();
        for usage in cell.split('`').skip(1).step_by(2) {
            let mut words = usage.split_whitespace();
            let name = words.next().unwrap_or_default();
            let Some(verb) = command.find_subcommand(name) else {
                continue;
            };
            let known = |flag: &str| {
                let mut all = verb.get_arguments().chain(command.get_arguments());
                all.any(|a| match flag.strip_prefix("--") {
                    Some(long) => a.get_long() == Some(long),
                    None => a.get_short().is_some_and(|s| flag == format!("-{s}")),
                })
            };
            for word in words {
                let flag = word.trim_matches(['[', ']']);
                if flag.starts_with('-') && flag != "--" {
                    seen += 1;
                    if !known(flag) {
                        unknown.push(format!("{name} {flag}"));
                    }
                }
            }
        }
    }
    (seen, unknown)
}

#[test]
fn every_flag_in_the_table_of_verbs_is_one_of_its_verb() {
    let (seen, unknown) = flags_of_table(include_str!("../../../../docs/cli.md"));
    assert!(seen > 15 && unknown.is_empty(), "{seen}: {unknown:?}");
    let page = "| `top [-A] [--watch]`, `queue -z` | what runs |";
    let unknown = vec!["top --watch".to_owned(), "queue -z".to_owned()];
    assert_eq!(flags_of_table(page), (3, unknown));
}

/// What is wrong with the examples in the help of a verb.
fn wrong_examples(help: &str) -> Vec<String> {
    let lines = help.lines();
    let examples: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("  kubectl lockstep "))
        .collect();
    let wrong = examples.iter().filter_map(|example| {
        let words = example.split(['|', '>']).next()?.split_whitespace();
        let parsed = Args::try_parse_from(["kubectl-lockstep"].into_iter().chain(words));
        Some(format!("{example}: {}", parsed.err()?))
    });
    let few = (examples.len() < 2).then(|| format!("{} examples", examples.len()));
    wrong.chain(few).collect()
}

#[test]
fn every_verb_has_two_examples_that_parse() {
    for verb in Args::command()
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
    {
        let help = verb
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert_eq!(wrong_examples(&help), [""; 0], "{}", verb.get_name());
    }
}

#[test]
fn a_verb_with_one_example_or_one_that_does_not_parse_is_noticed() {
    let queue = "Examples:\n  kubectl lockstep queue\n";
    assert_eq!(wrong_examples(queue), ["1 examples"]);
    let found = wrong_examples(&format!("{queue}  kubectl lockstep queue --colour"));
    assert!(
        found.len() == 1 && found[0].contains("'--colour'"),
        "{found:?}"
    );
}
