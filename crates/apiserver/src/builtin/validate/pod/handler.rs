//! Probes and lifecycle hooks: what is asked of a container while it runs.

use super::{
    super::{
        at::{At, Errors},
        text,
    },
    port_or_name,
};

pub(super) fn liveness(probe: &At<'_>, errors: &mut Errors) {
    if !probe.is_set() {
        return;
    }
    self::probe(probe, errors);
    if probe.at("successThreshold").number() != 1 {
        probe
            .at("successThreshold")
            .invalid_as(errors, probe.at("successThreshold").number(), "must be 1");
    }
}

pub(super) fn readiness(probe: &At<'_>, errors: &mut Errors) {
    if !probe.is_set() {
        return;
    }
    self::probe(probe, errors);
    let grace = probe.at("terminationGracePeriodSeconds");
    if grace.is_set() {
        grace.invalid(errors, "must not be set for readinessProbes");
    }
}

fn probe(probe: &At<'_>, errors: &mut Errors) {
    handler(probe, errors);
    for name in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        probe.at(name).not_negative(errors);
    }
    let grace = probe.at("terminationGracePeriodSeconds");
    if grace.optional_number().is_some_and(|seconds| seconds <= 0) {
        grace.invalid(errors, "must be greater than 0");
    }
}

pub(super) fn lifecycle(lifecycle: &At<'_>, grace: Option<i64>, errors: &mut Errors) {
    for name in ["postStart", "preStop"] {
        let hook = lifecycle.at(name);
        if hook.is_set() {
            handler(&hook, errors);
            if let Some(seconds) = hook.at("sleep").at("seconds").optional_number() {
                let most = grace.unwrap_or(i64::MAX);
                if seconds < 0 || seconds > most {
                    hook.at("sleep").invalid_as(
                        errors,
                        seconds,
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({most})"),
                    );
                }
            }
        }
    }
}

fn handler(holder: &At<'_>, errors: &mut Errors) {
    let mut count = 0;
    let mut first = |at: &At<'_>, errors: &mut Errors| {
        count += usize::from(at.is_set());
        if count > 1 && at.is_set() {
            at.forbidden(errors, "may not specify more than 1 handler type");
        }
        at.is_set() && count == 1
    };
    let exec = holder.at("exec");
    if first(&exec, errors) {
        exec.at("command").require(errors);
    }
    let http = holder.at("httpGet");
    if first(&http, errors) {
        self::http(&http, errors);
    }
    let tcp = holder.at("tcpSocket");
    if first(&tcp, errors) {
        port_or_name(&tcp.at("port"), errors);
    }
    let grpc = holder.at("grpc");
    if first(&grpc, errors) {
        grpc.at("port").port(errors);
    }
    let sleep = holder.at("sleep");
    first(&sleep, errors);
    if count == 0 {
        holder.missing(errors, "must specify a handler type");
    }
}

fn http(http: &At<'_>, errors: &mut Errors) {
    http.at("path").require(errors);
    port_or_name(&http.at("port"), errors);
    http.at("scheme").one_of(errors, &["HTTP", "HTTPS"]);
    let headers = http.at("httpHeaders");
    headers.each(|header| headers.with(header.at("name").value).follow(errors, text::header_name));
}
