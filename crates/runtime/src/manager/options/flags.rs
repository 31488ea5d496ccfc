//! The table of options.

/// What an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// True or false; true if it is only named.
    Switch,
    /// One value.
    Value,
    /// Values by commas.
    Values,
}

pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "health-probe-bind-address",
        takes: Takes::Value,
        default: ":8081",
        help: "Address of /healthz and /readyz, such as :8081 or localhost:8081; 0 for none",
    },
    Flag {
        name: "metrics-bind-address",
        takes: Takes::Value,
        default: ":8080",
        help: "Address of /metrics, such as :8080 or localhost:8080; 0 for none",
    },
    Flag {
        name: "leader-elect",
        takes: Takes::Switch,
        default: "false",
        help: "Act only while holding the lease",
    },
    Flag {
        name: "leader-election-id",
        takes: Takes::Value,
        default: "",
        help: "Name of the lease; empty for that of the field owner",
    },
    Flag {
        name: "leader-election-namespace",
        takes: Takes::Value,
        default: "",
        help: "Namespace of the lease; empty for the one that the process runs in",
    },
    Flag {
        name: "log-format",
        takes: Takes::Value,
        default: "text",
        help: "text or json",
    },
    Flag {
        name: "log-level",
        takes: Takes::Value,
        default: "info",
        help: "Level, or directives such as warn,moorline_runtime=debug",
    },
    Flag {
        name: "trace-endpoint",
        takes: Takes::Value,
        default: "",
        help: "OTLP collector for traces, such as http://localhost:4318; empty for none",
    },
    Flag {
        name: "user-agent",
        takes: Takes::Value,
        default: "moorline",
        help: "How the process calls itself to the API server",
    },
    Flag {
        name: "namespaces",
        takes: Takes::Values,
        default: "",
        help: "Namespaces to watch, by commas; empty for all",
    },
    Flag {
        name: "member-kubeconfig",
        takes: Takes::Value,
        default: "",
        help: "Kubeconfig whose contexts are member clusters; followed as it changes; empty for none",
    },
    Flag {
        name: "member-contexts",
        takes: Takes::Values,
        default: "",
        help: "Contexts of it that are members, by commas; empty for all",
    },
    Flag {
        name: "workers",
        takes: Takes::Value,
        default: "4",
        help: "Objects that each controller works on at once",
    },
    Flag {
        name: "kube-api-qps",
        takes: Takes::Value,
        default: "0",
        help: "Requests a second, those for the lease left out; 0 for no bound",
    },
    Flag {
        name: "kube-api-burst",
        takes: Takes::Value,
        default: "100",
        help: "Requests at once after a quiet time",
    },
    Flag {
        name: "graceful-shutdown-timeout",
        takes: Takes::Value,
        default: "30",
        help: "Time for what is under way at the end: seconds, or such as 1m30s",
    },
    Flag {
        name: "record",
        takes: Takes::Value,
        default: "",
        help: "Directory that reconciles are recorded in; empty for none",
    },
    Flag {
        name: "records",
        takes: Takes::Value,
        default: "1000",
        help: "Reconciles to keep there",
    },
];
