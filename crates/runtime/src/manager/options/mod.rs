//! The manager's options: one table, from which flags, environment, file and help come.

mod flags;
#[cfg(test)]
mod tests;
mod value;

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command};

use self::{
    flags::{FLAGS, Takes},
    value::{Value, read_file},
};
use super::serve::Address;

/// How a manager runs. By flag, by environment (`MOORLINE_` and the flag in capitals), by file, by default, in this
/// order.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where `/healthz` and `/readyz` are served; nowhere without one.
    pub health_address: Option<Address>,
    /// Where `/metrics` is served; nowhere without one.
    pub metrics_address: Option<Address>,
    /// Whether one of several processes leads.
    pub leader_elect: bool,
    /// The name of the lease. Without one it is made of the field owner's, for which one process acts at a time.
    pub lease_name: Option<String>,
    /// The namespace of the lease; without one the client's own, in a pod that of the pod.
    pub lease_namespace: Option<String>,
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
    /// The kubeconfig whose contexts are member clusters; there are none without one.
    pub member_kubeconfig: Option<PathBuf>,
    /// The contexts of it that are members; all without one.
    pub member_contexts: Vec<String>,
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
    #[error("{option}: {value:?} {why}")]
    Value {
        /// Which option, and where it was given.
        option: String,
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

const FILE: &str = "config";

impl Options {
    /// Adds the flags to a command, with one switch for each group of controllers and its default.
    pub fn augment(mut command: Command, groups: &[(&'static str, bool)]) -> Command {
        let argument = |name: &'static str, takes: Takes, default: &'static str, help: &'static str| {
            let argument = Arg::new(name)
                .long(name)
                .help(format!("{help} [default: {default}] [env: {}]", environment(name)))
                .action(ArgAction::Set);
            if takes == Takes::Switch {
                // As in Go: what follows after a blank is another argument.
                argument
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true")
            } else {
                argument
            }
        };
        let help = format!(
            "File of options, as YAML: flag names and values [env: {}]",
            environment(FILE)
        );
        command = command.arg(Arg::new(FILE).long(FILE).help(help));
        for flag in FLAGS {
            command = command.arg(argument(flag.name, flag.takes, flag.default, flag.help));
        }
        for (name, on) in groups {
            command = command.arg(argument(
                name,
                Takes::Switch,
                text(*on),
                "Whether these controllers run",
            ));
        }
        command
    }

    /// Reads what a command of [`augment`](Self::augment) was given, and the file that it names.
    pub fn from_matches(matches: &ArgMatches, groups: &[(&'static str, bool)]) -> Result<Self, OptionsError> {
        Self::resolve(matches, groups, |name| std::env::var_os(name))
    }

    fn resolve(
        matches: &ArgMatches,
        groups: &[(&'static str, bool)],
        in_environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, OptionsError> {
        let set = |name: &str| match matches.get_one::<String>(name) {
            Some(text) => Ok(Some(Value::new(format!("--{name}"), text.clone()))),
            None => in_environment(&environment(name))
                .map(|text| Value::of_environment(environment(name), text))
                .transpose(),
        };
        let file = match set(FILE)? {
            Some(path) => {
                let takes = |name: &str| {
                    let flag = FLAGS.iter().find(|flag| flag.name == name).map(|flag| flag.takes);
                    flag.or_else(|| groups.iter().any(|(group, _)| *group == name).then_some(Takes::Switch))
                };
                read_file(PathBuf::from(path.text()), takes)?
            }
            None => BTreeMap::new(),
        };
        let given = |name: &str, default: &str| {
            let value = set(name)?.or_else(|| file.get(name).cloned());
            Ok::<_, OptionsError>(value.unwrap_or_else(|| Value::new(format!("--{name}"), default.to_owned())))
        };
        let value = |name: &'static str| {
            let flag = FLAGS
                .iter()
                .find(|flag| flag.name == name)
                .expect("only flags of the table are asked for");
            given(name, flag.default)
        };
        let groups = groups
            .iter()
            .map(|(name, on)| Ok(((*name).to_owned(), given(name, text(*on))?.switch()?)));
        Ok(Self {
            health_address: value("health-probe-bind-address")?.address()?,
            metrics_address: value("metrics-bind-address")?.address()?,
            leader_elect: value("leader-elect")?.switch()?,
            lease_name: value("leader-election-id")?.unless_empty(),
            lease_namespace: value("leader-election-namespace")?.unless_empty(),
            log_format: value("log-format")?.log_format()?,
            log_level: value("log-level")?.text(),
            trace_endpoint: value("trace-endpoint")?.endpoint()?,
            user_agent: value("user-agent")?.user_agent()?,
            namespaces: value("namespaces")?.namespaces()?,
            member_kubeconfig: value("member-kubeconfig")?.unless_empty().map(PathBuf::from),
            member_contexts: value("member-contexts")?.names(),
            workers: value("workers")?.at_least_one("is not a number of workers")?,
            qps: value("kube-api-qps")?.qps()?,
            burst: value("kube-api-burst")?.at_least_one("is not a number of requests")?,
            graceful_stop: value("graceful-shutdown-timeout")?.time()?,
            record: value("record")?.unless_empty().map(PathBuf::from),
            records: value("records")?.at_least_one("is not a number of records")?,
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

fn text(on: bool) -> &'static str {
    if on { "true" } else { "false" }
}

fn environment(flag: &str) -> String {
    format!("MOORLINE_{}", flag.to_uppercase().replace('-', "_"))
}
