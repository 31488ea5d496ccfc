//! Probes and hooks: asking a container how it is, and telling it that it begins or ends.
//!
//! [`watch`] asks one container one question over and over and reports when the answer counts as changed, by the
//! thresholds of the probe. How a question is put is in `ask`; counting is pure.

mod ask;
mod grpc;
mod tally;

use std::{sync::Arc, time::Duration};

pub(crate) use ask::{Answer, Exec, ExecError, ExecOutcome, Target, ask, hook};
use k8s_openapi::api::core::v1::Probe;
use tally::{Tally, Verdict};
use tokio::sync::{mpsc, watch};

/// Which question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Has it started?
    Startup,
    /// Is it to be restarted?
    Liveness,
    /// Does it take requests?
    Readiness,
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Question::Startup => "Startup",
            Question::Liveness => "Liveness",
            Question::Readiness => "Readiness",
        })
    }
}

/// What a probe has found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The answer that counts is now this.
    Settled {
        container: String,
        attempt: String,
        question: Question,
        healthy: bool,
    },
    /// It failed once; words for an event.
    Failed {
        container: String,
        question: Question,
        words: String,
    },
}

/// One question to one run of a container.
pub(crate) struct Watch {
    pub(crate) question: Question,
    pub(crate) probe: Probe,
    pub(crate) target: Arc<Target>,
    pub(crate) container: String,
    pub(crate) attempt: String,
    /// Liveness and readiness wait for it; the startup probe itself does not.
    pub(crate) started: watch::Receiver<bool>,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

/// Asks until the run is over; that is, until the task is aborted or nobody listens.
pub(crate) async fn watch(mut this: Watch) {
    let seconds = |value: Option<i32>, default: u64| {
        let value = value
            .and_then(|value| u64::try_from(value).ok())
            .filter(|value| *value > 0);
        Duration::from_secs(value.unwrap_or(default))
    };
    let delay = this
        .probe
        .initial_delay_seconds
        .and_then(|delay| u64::try_from(delay).ok())
        .unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(delay)).await;
    if this.question != Question::Startup && this.started.wait_for(|started| *started).await.is_err() {
        return;
    }
    let period = seconds(this.probe.period_seconds, 10);
    let timeout = seconds(this.probe.timeout_seconds, 1);
    let mut tally = Tally::new(this.probe.success_threshold, this.probe.failure_threshold);
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = ask(&this.probe, &this.target, timeout).await;
        let healthy = match answer {
            Answer::Well => true,
            Answer::Ill(words) => {
                let report = Report::Failed {
                    container: this.container.clone(),
                    question: this.question,
                    words,
                };
                if this.reports.send(report).is_err() {
                    return;
                }
                false
            }
            // The question could not be put: that says nothing about the container.
            Answer::Unknown(words) => {
                tracing::debug!(container = this.container, words, "a probe could not be carried out");
                continue;
            }
        };
        if let Verdict::Settled(healthy) = tally.count(healthy) {
            let report = Report::Settled {
                container: this.container.clone(),
                attempt: this.attempt.clone(),
                question: this.question,
                healthy,
            };
            let over = this.question == Question::Startup || (this.question == Question::Liveness && !healthy);
            if this.reports.send(report).is_err() || over {
                return;
            }
        }
    }
}
