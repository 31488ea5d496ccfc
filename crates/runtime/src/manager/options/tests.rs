use super::*;

const GROUPS: &[(&str, bool)] = &[("apps", true), ("trace", false)];

fn parse(arguments: &[&str]) -> Result<Options, OptionsError> {
    let command = Options::augment(Command::new("test"), GROUPS);
    let environment = |name: &str| (name == "MOORLINE_RECORDS").then(|| "7".into());
    Options::resolve(
        &command.get_matches_from([&["test"], arguments].concat()),
        GROUPS,
        environment,
    )
}

#[test]
fn the_flags_of_a_kubeblocks_deployment_are_understood() {
    let options = parse(&[
        "--health-probe-bind-address=:8091",
        "--metrics-bind-address=127.0.0.1:8090",
        "--leader-elect",
        "--apps=false",
        "--trace=true",
        "--user-agent=kubeblocks",
    ])
    .unwrap();
    assert_eq!(options.health_address, Some(Address::Everywhere(8091)));
    assert_eq!(options.metrics_address, Some("127.0.0.1:8090".parse().unwrap()));
    assert!(options.leader_elect);
    assert_eq!(
        options.groups,
        BTreeMap::from([("apps".to_owned(), false), ("trace".to_owned(), true)])
    );
    assert_eq!(options.user_agent, "kubeblocks");
}

#[test]
fn a_flag_overrules_the_file_and_the_file_the_default() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("options.yaml");
    std::fs::write(
        &path,
        "workers: 9\nrecords: 6\nnamespaces: [a, b]\nlog-format: json\ntrace: true\n",
    )
    .unwrap();
    let file = format!("--config={}", path.display());
    let options = parse(&[&file, "--log-format=text"]).unwrap();
    assert_eq!(options.workers, 9);
    assert_eq!(options.records, 7, "by environment");
    assert_eq!(
        parse(&[&file, "--records=8"]).unwrap().records,
        8,
        "a flag overrules it"
    );
    assert_eq!(options.namespaces, ["a", "b"]);
    assert_eq!(options.log_format, LogFormat::Text);
    assert!(options.groups["trace"]);
}

#[test]
fn a_word_in_the_file_that_is_no_option_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("options.yaml");
    std::fs::write(&path, "worker: 9\n").unwrap();
    let error = parse(&[&format!("--config={}", path.display())]).unwrap_err();
    assert!(error.to_string().ends_with("\"worker\" is no option"), "{error}");
}

#[test]
fn traces_go_to_the_usual_path_of_a_collector_unless_another_is_given() {
    let endpoint = |text: &str| parse(&[&format!("--trace-endpoint={text}")]).map(|options| options.trace_endpoint);
    let uri = |text: &'static str| Some(http::Uri::from_static(text));
    assert_eq!(parse(&[]).unwrap().trace_endpoint, None, "nobody asked");
    assert_eq!(endpoint("http://here:4318").unwrap(), uri("http://here:4318/v1/traces"));
    assert_eq!(endpoint("https://here/").unwrap(), uri("https://here/v1/traces"));
    assert_eq!(endpoint("http://here/its/own").unwrap(), uri("http://here/its/own"));
    let error = endpoint("here:4318").unwrap_err();
    assert_eq!(
        error.to_string(),
        "--trace-endpoint: \"here:4318\" is not a URL of http or https"
    );
}

#[test]
fn a_value_that_makes_no_sense_is_refused_with_its_flag() {
    let error = parse(&["--workers=many"]).unwrap_err();
    assert_eq!(error.to_string(), "--workers: \"many\" is not a number of workers");
    assert!(
        parse(&["--metrics-bind-address=here"])
            .unwrap_err()
            .to_string()
            .contains("is not an address")
    );
    assert_eq!(parse(&["--metrics-bind-address=0"]).unwrap().metrics_address, None);
}

/// What a file with these contents gives.
fn parse_file(contents: &str) -> Result<Options, OptionsError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("options.yaml");
    std::fs::write(&path, contents).unwrap();
    parse(&[&format!("--config={}", path.display())])
}

#[test]
fn what_a_file_names_is_taken_as_it_is_written_or_refused() {
    assert_eq!(
        parse_file("namespaces: [123, true, a]").unwrap().namespaces,
        ["123", "true", "a"]
    );
    assert_eq!(parse_file("namespaces: \"a, b,,a\"").unwrap().namespaces, ["a", "b"]);
    let empty = parse_file("namespaces:\nrecord:\nworkers: null\n").unwrap();
    assert_eq!(
        (empty.namespaces, empty.record, empty.workers),
        (Vec::new(), None, 4),
        "a name without a value gives nothing"
    );
    for (contents, why) in [
        ("namespaces: [{ a: b }]", "\"namespaces\" cannot be [{\"a\":\"b\"}]"),
        ("namespaces: [a, null]", "\"namespaces\" cannot be [\"a\",null]"),
        ("workers: [4]", "\"workers\" cannot be [4]"),
        ("record: { a: b }", "\"record\" cannot be {\"a\":\"b\"}"),
    ] {
        let error = parse_file(contents).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
    }
}

#[test]
fn only_a_switch_may_stand_without_a_value() {
    let command = || Options::augment(Command::new("test").arg(Arg::new("place")), GROUPS);
    for flag in ["record", "user-agent", "namespaces", "leader-election-id", "workers"] {
        let matches = command().try_get_matches_from(["test", &format!("--{flag}")]);
        assert!(matches.is_err(), "--{flag}");
    }
    let matches = command().get_matches_from(["test", "--leader-elect", "here"]);
    assert_eq!(matches.get_one::<String>("place").map(String::as_str), Some("here"));
    assert!(Options::resolve(&matches, GROUPS, |_| None).unwrap().leader_elect);
}

#[test]
fn figures_out_of_range_are_refused() {
    for wrong in [
        "--kube-api-qps=NaN",
        "--kube-api-qps=-5",
        "--kube-api-qps=1e-30",
        "--kube-api-qps=inf",
        "--kube-api-burst=0",
        "--workers=0",
        "--records=0",
        "--graceful-shutdown-timeout=-1s",
        "--namespaces=a b",
        "--namespaces=A",
        "--user-agent=a\nb",
    ] {
        let error = parse(&[wrong]).unwrap_err().to_string();
        let flag = wrong.split('=').next().unwrap_or_default();
        assert!(error.starts_with(&format!("{flag}: ")), "{error}");
    }
    assert_eq!(
        parse(&["--graceful-shutdown-timeout=1m30s"]).unwrap().graceful_stop,
        Duration::from_secs(90)
    );
    assert!(parse(&["--leader-elect=T"]).unwrap().leader_elect);
}

#[test]
fn an_error_names_the_place_that_the_value_came_from() {
    let error = parse_file("workers: many").unwrap_err().to_string();
    assert!(
        error.starts_with("workers in /") && error.ends_with("options.yaml: \"many\" is not a number of workers"),
        "{error}"
    );
    let matches = Options::augment(Command::new("test"), &[]).get_matches_from(["test"]);
    let with = |value: OsString| {
        let resolved = Options::resolve(&matches, &[], |name| {
            (name == "MOORLINE_WORKERS").then(|| value.clone())
        });
        resolved.unwrap_err().to_string()
    };
    assert_eq!(
        with("many".into()),
        "MOORLINE_WORKERS: \"many\" is not a number of workers"
    );
    let not_text = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
    assert_eq!(with(not_text), "MOORLINE_WORKERS: \"\u{fffd}\" is not text");
}

#[test]
fn members_are_named_by_flag_and_by_file() {
    assert_eq!(parse(&[]).unwrap().member_kubeconfig, None, "nobody asked");
    let options = parse(&["--member-kubeconfig=/here", "--member-contexts=east,west"]).unwrap();
    assert_eq!(options.member_kubeconfig, Some(PathBuf::from("/here")));
    assert_eq!(options.member_contexts, ["east", "west"]);
    let options = parse_file("member-kubeconfig: /there\nmember-contexts: [north]\n").unwrap();
    assert_eq!(options.member_kubeconfig, Some(PathBuf::from("/there")));
    assert_eq!(options.member_contexts, ["north"]);
}
