//! What a container may do to its host.

use std::collections::HashSet;

use moorline_machinery::field::ErrorKind;

use super::super::at::{At, Errors, internal_value, shown};

const ID_MAX: i64 = i32::MAX as i64;

pub(super) fn pod(context: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    ids(context, &["fsGroup", "runAsUser", "runAsGroup"], errors);
    context
        .at("supplementalGroups")
        .each(|group| group.within(errors, 0, ID_MAX));
    if spec.at("shareProcessNamespace").flag() && spec.at("hostPID").flag() {
        context.at("shareProcessNamespace").invalid_as(
            errors,
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(&context.at("sysctls"), errors);
    context
        .at("fsGroupChangePolicy")
        .one_of_if_set(errors, &["Always", "OnRootMismatch"]);
    seccomp(&context.at("seccompProfile"), errors);
    app_armor(&context.at("appArmorProfile"), errors);
    context
        .at("supplementalGroupsPolicy")
        .one_of_if_set(errors, &["Merge", "Strict"]);
    context
        .at("seLinuxChangePolicy")
        .one_of_if_set(errors, &["MountOption", "Recursive"]);
}

fn ids(context: &At<'_>, names: &[&str], errors: &mut Errors) {
    for name in names {
        let id = context.at(name);
        if id.is_set() {
            id.within(errors, 0, ID_MAX);
        }
    }
}

fn sysctls(sysctls: &At<'_>, errors: &mut Errors) {
    const EXPRESSION: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let mut seen = HashSet::new();
    sysctls.each(|sysctl| {
        let name = sysctl.at("name");
        if name.text().is_empty() {
            name.missing(errors, "");
        } else if name.text().len() > 253 || !is_sysctl(name.text()) {
            name.invalid(
                errors,
                format!("must have at most 253 characters and match regex {EXPRESSION}"),
            );
        } else if !seen.insert(name.text().replace('/', ".")) {
            name.duplicate(errors, name.text());
        }
    });
}

fn is_sysctl(name: &str) -> bool {
    name.split(['.', '/']).all(|part| {
        let inner = part
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
        inner && !part.is_empty() && !part.starts_with(['-', '_']) && !part.ends_with(['-', '_'])
    })
}

fn seccomp(profile: &At<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (kind, local) = (profile.at("type"), profile.at("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            if local.is_set() {
                local.follow(errors, super::super::text::descending_path);
            } else {
                local.missing(errors, "must be set when seccomp type is Localhost");
            }
        }
        _ if local.is_set() => {
            let text = format!(
                "{{\"Type\":{},\"LocalhostProfile\":{}}}",
                shown(kind.value),
                shown(local.value)
            );
            let why = "can only be set when seccomp type is Localhost";
            errors.push(internal_value(ErrorKind::Invalid, &local.path, &text, why));
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => kind.missing(errors, "type is required when seccompProfile is set"),
        _ => kind.one_of(errors, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn app_armor(profile: &At<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (kind, local) = (profile.at("type"), profile.at("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            if local.is_set() {
                if local.text().trim() != local.text() {
                    local.invalid(errors, "must not be padded with whitespace");
                } else if local.text().is_empty() {
                    local.missing(errors, "must be set when AppArmor type is Localhost");
                }
                local.max_length(errors, 4095);
            } else {
                local.missing(errors, "must be set when AppArmor type is Localhost");
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if local.is_set() {
                local.invalid(errors, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => kind.missing(errors, "type is required when appArmorProfile is set"),
        _ => kind.one_of(errors, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

pub(super) fn container(context: &At<'_>, errors: &mut Errors) {
    if !context.is_set() {
        return;
    }
    ids(context, &["runAsUser", "runAsGroup"], errors);
    context.at("procMount").one_of_if_set(errors, &["Default", "Unmasked"]);
    seccomp(&context.at("seccompProfile"), errors);
    let escalation = context.at("allowPrivilegeEscalation");
    if escalation.is_set() && !escalation.flag() {
        if context.at("privileged").flag() {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(internal_value(
                ErrorKind::Invalid,
                &context.path,
                &internal(context),
                why,
            ));
        }
        let adds_admin = context
            .at("capabilities")
            .at("add")
            .items()
            .iter()
            .any(|added| added == "CAP_SYS_ADMIN");
        if adds_admin {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(internal_value(
                ErrorKind::Invalid,
                &context.path,
                &internal(context),
                why,
            ));
        }
    }
    app_armor(&context.at("appArmorProfile"), errors);
}

/// A container's context as Kubernetes holds it inside.
fn internal(context: &At<'_>) -> String {
    let part = |name: &str| shown(context.at(name).value);
    let capabilities = context.at("capabilities");
    let capabilities = if capabilities.is_set() {
        let (add, drop) = (
            shown(capabilities.at("add").value),
            shown(capabilities.at("drop").value),
        );
        format!("{{\"Add\":{add},\"Drop\":{drop}}}")
    } else {
        "null".to_owned()
    };
    let others = [
        ("Privileged", "privileged"),
        ("SELinuxOptions", "seLinuxOptions"),
        ("WindowsOptions", "windowsOptions"),
        ("RunAsUser", "runAsUser"),
        ("RunAsGroup", "runAsGroup"),
        ("RunAsNonRoot", "runAsNonRoot"),
        ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem"),
        ("AllowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("ProcMount", "procMount"),
        ("SeccompProfile", "seccompProfile"),
        ("AppArmorProfile", "appArmorProfile"),
    ];
    let others: Vec<String> = others
        .iter()
        .map(|(internal, name)| format!("\"{internal}\":{}", part(name)))
        .collect();
    format!("{{\"Capabilities\":{capabilities},{}}}", others.join(","))
}
