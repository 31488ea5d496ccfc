//! The manager's options: one table, from which flags, environment, file and help come.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command};

/// How a manager runs. By flag, by environment (`MOORLINE_` and the flag in capitals), by file, by default, in this
/// order.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where `/healthz` and `/readyz` are served; nowhere without one.
    pub health_address: Option<SocketAddr>,
    /// Where `/metrics` is served; nowhere without one.
    pub metrics_address: Option<SocketAddr>,
    /// Whether one of several processes leads.
    pub leader_elect: bool,
    /// The name of the lease.
    pub lease_name: String,
    /// The namespace of the lease.
    pub lease_namespace: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines there are, such as `info` or `warn,moorline_runtime=debug`.
    pub log_level: String,
    /// The OTLP collector that is told of every reconcile, by HTTP; none is without one.
    pub trace_endpoint: Option<http::Uri>,
    /// How the process calls itself to the API server.
    pub user_agent: String,
    /// The namespaces to watch; all without one.
    pub namespaces: Vec<String>,
    /// How many objects each controller works on at once.
    pub workers: usize,
    /// How many requests a second; without a bound if zero.
    pub qps: f64,
    /// How many requests may come at once after a quiet time.
    pub burst: u32,
    /// How long what is under way may take at the end.
    pub graceful_stop: Duration,
    /// Where reconciles are recorded, if they are.
    pub record: Option<PathBuf>,
    /// How many of them are kept.
    pub records: usize,
    /// Which groups of controllers run.
    pub groups: BTreeMap<String, bool>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Why options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A value makes no sense.
    #[error("--{flag}: {value:?} {why}")]
    Value {
        /// Which option.
        flag: String,
        /// What it was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file cannot be read.
    #[error("cannot read the options file {path}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file makes no sense.
    #[error("the options file {path} cannot be understood: {why}")]
    Contents {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

struct Flag {
    name: &'static str,
    default: &'static str,
    help: &'static str,
}

const FLAGS: &[Flag] = &[
    Flag {
        name: "health-probe-bind-address",
        default: ":8081",
        help: "Address of /healthz and /readyz; 0 for none",
    },
    Flag {
        name: "metrics-bind-address",
        default: ":8080",
        help: "Address of /metrics; 0 for none",
    },
    Flag {
        name: "leader-elect",
        default: "false",
        help: "Act only while holding the lease",
    },
    Flag {
        name: "leader-election-id",
        default: "moorline",
        help: "Name of the lease",
    },
    Flag {
        name: "leader-election-namespace",
        default: "default",
        help: "Namespace of the lease",
    },
    Flag {
        name: "log-format",
        default: "text",
        help: "text or json",
    },
    Flag {
        name: "log-level",
        default: "info",
        help: "Level, or directives such as warn,moorline_runtime=debug",
    },
    Flag {
        name: "trace-endpoint",
        default: "",
        help: "OTLP collector for traces, such as http://localhost:4318; empty for none",
    },
    Flag {
        name: "user-agent",
        default: "moorline",
        help: "How the process calls itself to the API server",
    },
    Flag {
        name: "namespaces",
        default: "",
        help: "Namespaces to watch, by commas; empty for all",
    },
    Flag {
        name: "workers",
        default: "4",
        help: "Objects that each controller works on at once",
    },
    Flag {
        name: "kube-api-qps",
        default: "0",
        help: "Requests a second; 0 for no bound",
    },
    Flag {
        name: "kube-api-burst",
        default: "100",
        help: "Requests at once after a quiet time",
    },
    Flag {
        name: "graceful-shutdown-timeout",
        default: "30",
        help: "Seconds for what is under way at the end",
    },
    Flag {
        name: "record",
        default: "",
        help: "Directory that reconciles are recorded in; empty for none",
    },
    Flag {
        name: "records",
        default: "1000",
        help: "Reconciles to keep there",
    },
];

const FILE: &str = "config";

impl Options {
    /// Adds the flags to a command, with one switch for each group of controllers and its default.
    pub fn augment(mut command: Command, groups: &[(&'static str, bool)]) -> Command {
        let argument = |name: &'static str, default: &'static str, help: &'static str| {
            Arg::new(name)
                .long(name)
                .help(format!("{help} [default: {default}] [env: {}]", environment(name)))
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(false)
                .default_missing_value("true")
        };
        let help = format!(
            "File of options, as YAML: flag names and values [env: {}]",
            environment(FILE)
        );
        command = command.arg(Arg::new(FILE).long(FILE).help(help));
        for flag in FLAGS {
            command = command.arg(argument(flag.name, flag.default, flag.help));
        }
        for (name, on) in groups {
            command = command.arg(argument(name, text(*on), "Whether these controllers run"));
        }
        command
    }

    /// Reads what a command of [`augment`](Self::augment) was given, and the file that it names.
    pub fn from_matches(matches: &ArgMatches, groups: &[(&'static str, bool)]) -> Result<Self, OptionsError> {
        Self::resolve(matches, groups, |name| std::env::var(name).ok())
    }

    fn resolve(
        matches: &ArgMatches,
        groups: &[(&'static str, bool)],
        in_environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OptionsError> {
        let set = |name: &str| {
            matches
                .get_one::<String>(name)
                .cloned()
                .or_else(|| in_environment(&environment(name)))
        };
        let file = match set(FILE) {
            Some(path) => {
                let known = |name: &str| {
                    FLAGS.iter().any(|flag| flag.name == name) || groups.iter().any(|(group, _)| *group == name)
                };
                read_file(PathBuf::from(path), known)?
            }
            None => BTreeMap::new(),
        };
        let given = |name: &str, default: &str| {
            set(name)
                .or_else(|| file.get(name).cloned())
                .unwrap_or_else(|| default.to_owned())
        };
        let value = |name: &'static str| {
            let flag = FLAGS
                .iter()
                .find(|flag| flag.name == name)
                .expect("only flags of the table are asked for");
            Value {
                name,
                text: given(name, flag.default),
            }
        };
        let groups = groups.iter().map(|(name, on)| {
            let value = Value {
                name,
                text: given(name, text(*on)),
            };
            Ok(((*name).to_owned(), value.parse("is neither true nor false")?))
        });
        Ok(Self {
            health_address: value("health-probe-bind-address").address()?,
            metrics_address: value("metrics-bind-address").address()?,
            leader_elect: value("leader-elect").parse("is neither true nor false")?,
            lease_name: value("leader-election-id").text,
            lease_namespace: value("leader-election-namespace").text,
            log_format: match value("log-format") {
                Value { text, .. } if text == "text" => LogFormat::Text,
                Value { text, .. } if text == "json" => LogFormat::Json,
                other => return Err(other.wrong("is neither text nor json")),
            },
            log_level: value("log-level").text,
            trace_endpoint: value("trace-endpoint").endpoint()?,
            user_agent: value("user-agent").text,
            namespaces: value("namespaces")
                .text
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            workers: value("workers").parse("is not a number of workers")?,
            qps: value("kube-api-qps").parse("is not a number")?,
            burst: value("kube-api-burst").parse("is not a number")?,
            graceful_stop: Duration::from_secs(value("graceful-shutdown-timeout").parse("is not a number of seconds")?),
            record: value("record").unless_empty().map(PathBuf::from),
            records: value("records").parse("is not a number")?,
            groups: groups.collect::<Result<_, OptionsError>>()?,
        })
    }
}

impl Default for Options {
    /// What comes of no flag, no environment and no file.
    fn default() -> Self {
        let matches = Self::augment(Command::new("moorline"), &[]).get_matches_from(["moorline"]);
        Self::resolve(&matches, &[], |_| None).expect("the defaults of the table make sense")
    }
}

struct Value {
    name: &'static str,
    text: String,
}

impl Value {
    fn parse<T: std::str::FromStr>(self, why: &str) -> Result<T, OptionsError> {
        match self.text.parse() {
            Ok(value) => Ok(value),
            Err(_) => Err(self.wrong(why)),
        }
    }

    fn unless_empty(self) -> Option<String> {
        (!self.text.is_empty()).then_some(self.text)
    }

    /// `:8080` is every address of this machine; `0` is none.
    fn address(self) -> Result<Option<SocketAddr>, OptionsError> {
        if self.text == "0" || self.text.is_empty() {
            return Ok(None);
        }
        let full = if self.text.starts_with(':') {
            format!("0.0.0.0{}", self.text)
        } else {
            self.text.clone()
        };
        full.parse()
            .map(Some)
            .map_err(|_| self.wrong("is not an address and a port"))
    }

    /// Where traces go: the collector's usual path, unless another one is given.
    fn endpoint(self) -> Result<Option<http::Uri>, OptionsError> {
        if self.text.is_empty() {
            return Ok(None);
        }
        let is_bare = |uri: &http::Uri| uri.path() == "/" && uri.query().is_none();
        let whole = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let uri: Option<http::Uri> = self.text.parse().ok().filter(whole);
        let uri = match uri {
            Some(uri) if is_bare(&uri) => format!("{}/v1/traces", self.text.trim_end_matches('/')).parse().ok(),
            other => other,
        };
        match uri {
            Some(uri) => Ok(Some(uri)),
            None => Err(self.wrong("is not a URL of http or https")),
        }
    }

    fn wrong(self, why: &str) -> OptionsError {
        OptionsError::Value {
            flag: self.name.to_owned(),
            value: self.text,
            why: why.to_owned(),
        }
    }
}

fn text(on: bool) -> &'static str {
    if on { "true" } else { "false" }
}

fn environment(flag: &str) -> String {
    format!("MOORLINE_{}", flag.to_uppercase().replace('-', "_"))
}

fn read_file(path: PathBuf, is_known: impl Fn(&str) -> bool) -> Result<BTreeMap<String, String>, OptionsError> {
    let contents = match std::fs::read_to_string(&path) {
        Ok(contents) => contents,
        Err(source) => return Err(OptionsError::File { path, source }),
    };
    let values: BTreeMap<String, serde_json::Value> =
        serde_saphyr::from_str(&contents).map_err(|error| OptionsError::Contents {
            path: path.clone(),
            why: error.to_string(),
        })?;
    let unknown = values.keys().find(|name| !is_known(name));
    if let Some(name) = unknown {
        return Err(OptionsError::Contents {
            path,
            why: format!("{name:?} is no option"),
        });
    }
    let texts = values.into_iter().map(|(name, value)| {
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Array(values) => {
                let texts: Vec<String> = values.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
                texts.join(",")
            }
            other => other.to_string(),
        };
        (name, text)
    });
    Ok(texts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &[(&str, bool)] = &[("apps", true), ("trace", false)];

    fn parse(arguments: &[&str]) -> Result<Options, OptionsError> {
        let command = Options::augment(Command::new("test"), GROUPS);
        let environment = |name: &str| (name == "MOORLINE_RECORDS").then(|| "7".to_owned());
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
        assert_eq!(options.health_address, Some("0.0.0.0:8091".parse().unwrap()));
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
}
