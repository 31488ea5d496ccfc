//! What the process tells of itself while it runs: log lines, and traces if somebody asked for them.

use std::{io::IsTerminal as _, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError, hyper::HyperClient};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::Targets,
    fmt::{self, MakeWriter},
    layer::SubscriberExt as _,
};

use super::{LogFormat, Options};

/// How long the collector may take to answer.
const EXPORT_WITHIN: Duration = Duration::from_secs(10);

/// The logs and traces of this process.
///
/// Lines go to standard error, in the format and at the level of the options. Every reconcile is a span, with its
/// controller, object and id, and every step that it ran is a span below it; they go to
/// [`Options::trace_endpoint`], and without one there is nothing that could send them.
///
/// ```no_run
/// # async fn run(options: moorline_runtime::Options) -> Result<(), Box<dyn std::error::Error>> {
/// let telemetry = moorline_runtime::Telemetry::begin(&options)?;
/// // ... a manager runs ...
/// telemetry.end().await;
/// # Ok(()) }
/// ```
#[must_use = "what was not sent yet is lost unless it is ended"]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

/// Why a process cannot tell anything.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level makes no sense.
    #[error("--log-level: {value:?} is neither a level nor directives such as warn,moorline_runtime=debug")]
    Level {
        /// What it was given.
        value: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Nothing can be sent to the collector.
    #[error("--trace-endpoint: cannot prepare to send traces to {endpoint}")]
    Exporter {
        /// Which collector.
        endpoint: http::Uri,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something else receives what is told already.
    #[error("cannot begin to log: this process has a log already")]
    Taken(#[from] tracing::subscriber::SetGlobalDefaultError),
}

impl Telemetry {
    /// Begins, for the whole process. Needs a tokio runtime if there is an endpoint for traces.
    pub fn begin(options: &Options) -> Result<Self, TelemetryError> {
        let colours = std::io::stderr().is_terminal();
        let (subscriber, telemetry) = Self::subscriber(options, std::io::stderr, colours)?;
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(telemetry)
    }

    fn subscriber<W>(
        options: &Options,
        writer: W,
        colours: bool,
    ) -> Result<(impl Subscriber + Send + Sync + use<W>, Self), TelemetryError>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        let level = EnvFilter::try_new(&options.log_level).map_err(|source| TelemetryError::Level {
            value: options.log_level.clone(),
            source,
        })?;
        let lines = fmt::layer().with_writer(writer).with_ansi(colours);
        let lines: Box<dyn Layer<Registry> + Send + Sync> = match options.log_format {
            LogFormat::Text => lines.with_filter(level).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_filter(level).boxed(),
        };
        let mut layers = vec![lines];
        let traces = options.trace_endpoint.as_ref().map(traces_to).transpose()?;
        if let Some(traces) = &traces {
            // Whatever the log is told to leave out, traces show what a reconcile did, and nothing of the libraries'
            // inner life: not even of the one that sends them.
            let shown = Targets::new()
                .with_default(LevelFilter::INFO)
                .with_target("moorline_runtime", LevelFilter::DEBUG);
            let spans = tracing_opentelemetry::layer().with_tracer(traces.tracer("moorline"));
            layers.push(spans.with_filter(shown).boxed());
        }
        Ok((tracing_subscriber::registry().with(layers), Self { traces }))
    }

    /// Sends what has not been sent yet. Log lines go on.
    pub async fn end(self) {
        let Some(traces) = self.traces else { return };
        // The last spans are sent on this runtime, so nothing may block it meanwhile.
        let ended = tokio::task::spawn_blocking(move || traces.shutdown_with_timeout(EXPORT_WITHIN)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

fn traces_to(endpoint: &http::Uri) -> Result<SdkTracerProvider, TelemetryError> {
    let wrong = |source| TelemetryError::Exporter {
        endpoint: endpoint.clone(),
        source,
    };
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        .map_err(|error| wrong(error.into()))?
        .https_or_http()
        .enable_http1()
        .build();
    let client = OnRuntime {
        client: HyperClient::new(connector, EXPORT_WITHIN, None),
        runtime: tokio::runtime::Handle::current(),
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(endpoint.to_string())
        .build()
        .map_err(|error| wrong(error.into()))?;
    let resource = Resource::builder().with_service_name("moorline").build();
    Ok(SdkTracerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build())
}

/// The exporter has a thread of its own; its requests run on our runtime.
#[derive(Debug)]
struct OnRuntime<C> {
    client: C,
    runtime: tokio::runtime::Handle,
}

#[async_trait]
impl<C: HttpClient + Clone + 'static> HttpClient for OnRuntime<C> {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime
            .spawn(async move { client.send_bytes(request).await })
            .await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of a line at each of two levels, within a span.
    fn written(options: &Options) -> String {
        let paper = tempfile::NamedTempFile::new().unwrap();
        let (subscriber, telemetry) = Telemetry::subscriber(options, paper.reopen().unwrap(), false).unwrap();
        assert!(telemetry.traces.is_none(), "nobody asked for traces");
        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!("reconcile", object = "default/a").entered();
            tracing::info!(steps = 3, "planned");
            tracing::debug!("thought");
        });
        std::fs::read_to_string(paper.path()).unwrap()
    }

    #[test]
    fn lines_are_for_people_unless_machines_are_to_read_them() {
        let text = written(&Options::default());
        assert!(
            text.contains(" INFO reconcile{object=\"default/a\"}") && text.contains("planned steps=3"),
            "{text}"
        );
        let json = Options {
            log_format: LogFormat::Json,
            ..Options::default()
        };
        let line: serde_json::Value = serde_json::from_str(&written(&json)).unwrap();
        assert_eq!(line["message"], "planned");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["steps"], 3);
        assert_eq!(line["span"]["object"], "default/a");
    }

    #[test]
    fn the_level_decides_which_lines_there_are() {
        let at = |level: &str| Options {
            log_level: level.to_owned(),
            ..Options::default()
        };
        assert_eq!(written(&at("info")).lines().count(), 1);
        assert_eq!(written(&at("debug")).lines().count(), 2);
        assert_eq!(written(&at("debug,moorline_runtime=warn")), "");
    }

    #[test]
    fn a_level_that_makes_no_sense_is_refused_with_its_flag() {
        let options = Options {
            log_level: "moorline=loud".to_owned(),
            ..Options::default()
        };
        let refused = Telemetry::subscriber(&options, std::io::sink, false).err().unwrap();
        assert!(
            refused
                .to_string()
                .starts_with("--log-level: \"moorline=loud\" is neither"),
            "{refused}"
        );
    }
}
