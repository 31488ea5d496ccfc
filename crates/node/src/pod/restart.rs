//! Whether a container that has ended is started again.

use k8s_openapi::api::core::v1::Container;

use super::{
    memory::Ended,
    shape::{Kind, Restart},
};

/// By the pod's policy, the container's own, and its rules on exit codes.
pub(crate) fn restarts(pod: Restart, kind: Kind, container: &Container, ended: &Ended) -> bool {
    if kind == Kind::Ephemeral {
        return false;
    }
    if kind == Kind::Sidecar {
        return true;
    }
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.iter().flatten().any(|code| *code == ended.exit_code);
        let holds = if codes.operator == "NotIn" { !listed } else { listed };
        if holds && rule.action == "Restart" {
            return true;
        }
    }
    let policy = match &container.restart_policy {
        Some(policy) => Restart::parse(Some(policy)),
        None => pod,
    };
    match policy {
        // An init container that has done its work is done, whatever the policy.
        Restart::Always => kind != Kind::Init || ended.exit_code != 0,
        Restart::OnFailure => ended.exit_code != 0,
        Restart::Never => false,
    }
}
