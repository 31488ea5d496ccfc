//! What each level forbids, and how that is said.

use std::collections::BTreeSet;

use moorline_machinery::meta;
use serde_json::Value;

use super::super::{items, text};

/// How much a pod may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Everything.
    Privileged,
    /// Nothing that is known to lead out of a container.
    Baseline,
    /// Only what hardened pods do.
    Restricted,
}

impl Level {
    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted]
            .into_iter()
            .find(|level| level.as_str() == name)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// What a pod does that a level forbids, in one line; nothing if it keeps to the level.
pub(super) fn faults(pod: &Value, level: Level) -> Option<String> {
    if level == Level::Privileged {
        return None;
    }
    let pod = Pod(pod);
    let mut faults: Vec<Fault> = Vec::new();
    let restricted = level == Level::Restricted;
    if restricted {
        faults.extend(pod.privilege_escalation());
    }
    faults.extend(pod.app_armor());
    faults.extend(if restricted {
        pod.restricted_capabilities()
    } else {
        pod.added_capabilities()
    });
    faults.extend(pod.host_namespaces());
    faults.extend(if restricted { None } else { pod.host_paths() });
    faults.extend(pod.host_ports());
    faults.extend(pod.probe_hosts());
    faults.extend(pod.privileged());
    faults.extend(pod.proc_mounts());
    if restricted {
        faults.extend(pod.volume_types());
        faults.extend(pod.runs_as_root());
        faults.extend(pod.root_user());
    }
    faults.extend(pod.selinux());
    faults.extend(pod.seccomp(restricted));
    faults.extend(pod.sysctls());
    let said: Vec<String> = faults
        .into_iter()
        .map(|Fault { what, detail }| format!("{what} ({detail})"))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}

struct Fault {
    what: &'static str,
    detail: String,
}

impl Fault {
    fn of(what: &'static str, detail: String) -> Self {
        Self { what, detail }
    }
}

/// Capabilities that containers have anyway.
const USUAL: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Settings of the kernel that are a pod's own.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
const HARMLESS_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

struct Pod<'v>(&'v Value);

impl<'v> Pod<'v> {
    fn spec(&self) -> &'v Value {
        &self.0["spec"]
    }

    fn containers(&self) -> impl Iterator<Item = &'v Value> {
        let spec = self.spec();
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| items(spec, list))
    }

    /// The names of the containers that do something.
    fn which(&self, does: impl Fn(&Value) -> bool) -> Vec<&'v str> {
        let found = self.containers().filter(|container| does(container));
        found.map(|container| text(container, "name")).collect()
    }

    fn on_windows(&self) -> bool {
        self.spec()["os"]["name"] == "windows"
    }

    /// Pods with users of their own may do more: root there is nobody outside.
    fn has_own_users(&self) -> bool {
        self.spec()["hostUsers"] == false
    }

    fn privilege_escalation(&self) -> Option<Fault> {
        let bad = self.which(|container| container["securityContext"]["allowPrivilegeEscalation"] != false);
        if bad.is_empty() || self.on_windows() {
            return None;
        }
        Some(Fault::of(
            "allowPrivilegeEscalation != false",
            format!(
                "{} must set securityContext.allowPrivilegeEscalation=false",
                named("container", &bad)
            ),
        ))
    }

    /// Who says something forbidden in a security context, and what.
    fn setters(&self, field: &str, is_bad: impl Fn(&Value) -> bool) -> (Vec<String>, Vec<&'v Value>) {
        let mut values = Vec::new();
        let mut who = Vec::new();
        let own = &self.spec()["securityContext"][field];
        if !own.is_null() && is_bad(own) {
            who.push("pod".to_owned());
            values.push(own);
        }
        let bad: Vec<&Value> = self
            .containers()
            .filter(|container| {
                let value = &container["securityContext"][field];
                !value.is_null() && is_bad(value)
            })
            .collect();
        values.extend(bad.iter().map(|container| &container["securityContext"][field]));
        if !bad.is_empty() {
            let names: Vec<&str> = bad.iter().map(|container| text(container, "name")).collect();
            who.push(named("container", &names));
        }
        (who, values)
    }

    fn app_armor(&self) -> Option<Fault> {
        let known = |profile: &Value| matches!(text(profile, "type"), "RuntimeDefault" | "Localhost");
        let (mut who, values) = self.setters("appArmorProfile", |profile| !known(profile));
        let mut said: Vec<String> = distinct(values.into_iter().map(|profile| text(profile, "type")));
        let annotations = meta::of(self.0).annotations().into_iter().flatten();
        let forbidden: Vec<String> = annotations
            .filter(|(name, value)| {
                let value = value.as_str().unwrap_or_default();
                let allowed = value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
                name.starts_with(ARMOR_ANNOTATION) && !allowed
            })
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !forbidden.is_empty() {
            who.push(plural("annotation", forbidden.len()));
            said.extend(forbidden);
        }
        if who.is_empty() {
            return None;
        }
        let what = if said.len() == 1 {
            "forbidden AppArmor profile"
        } else {
            "forbidden AppArmor profiles"
        };
        Some(Fault::of(
            what,
            format!(
                "{} must not set AppArmor profile type to {}",
                who.join(" and "),
                quoted(&said)
            ),
        ))
    }

    fn added_capabilities(&self) -> Option<Fault> {
        let added = |container: &'v Value| items(&container["securityContext"]["capabilities"], "add");
        let unusual = |name: &&Value| !name.as_str().is_some_and(|name| USUAL.contains(&name));
        let bad: Vec<&Value> = self
            .containers()
            .filter(|container| added(container).any(|name| unusual(&name)))
            .collect();
        if bad.is_empty() {
            return None;
        }
        let names: Vec<&str> = bad.iter().map(|container| text(container, "name")).collect();
        let capabilities = bad.iter().flat_map(|container| added(container).filter(unusual));
        Some(Fault::of(
            "non-default capabilities",
            format!(
                "{} must not include {} in securityContext.capabilities.add",
                named("container", &names),
                quoted(&distinct(capabilities.filter_map(Value::as_str)))
            ),
        ))
    }

    fn restricted_capabilities(&self) -> Option<Fault> {
        if self.on_windows() {
            return self.added_capabilities();
        }
        let of = |container: &'v Value, list| items(&container["securityContext"]["capabilities"], list);
        let keeping: Vec<&str> = self
            .containers()
            .filter(|container| !of(container, "drop").any(|name| name == "ALL"))
            .map(|container| text(container, "name"))
            .collect();
        let extra = |name: &&Value| **name != "NET_BIND_SERVICE";
        let adding: Vec<&Value> = self
            .containers()
            .filter(|container| of(container, "add").any(|name| extra(&name)))
            .collect();
        let mut said = Vec::new();
        if !keeping.is_empty() {
            said.push(format!(
                "{} must set securityContext.capabilities.drop=[\"ALL\"]",
                named("container", &keeping)
            ));
        }
        if !adding.is_empty() {
            let names: Vec<&str> = adding.iter().map(|container| text(container, "name")).collect();
            let capabilities = adding.iter().flat_map(|container| of(container, "add").filter(extra));
            said.push(format!(
                "{} must not include {} in securityContext.capabilities.add",
                named("container", &names),
                quoted(&distinct(capabilities.filter_map(Value::as_str)))
            ));
        }
        (!said.is_empty()).then(|| Fault {
            what: "unrestricted capabilities",
            detail: said.join("; "),
        })
    }

    fn host_namespaces(&self) -> Option<Fault> {
        let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
            .into_iter()
            .filter(|field| self.spec()[*field] == true)
            .map(|field| format!("{field}=true"))
            .collect();
        (!shared.is_empty()).then(|| Fault {
            what: "host namespaces",
            detail: shared.join(", "),
        })
    }

    fn host_paths(&self) -> Option<Fault> {
        let paths: Vec<&str> = items(self.spec(), "volumes")
            .filter(|volume| !volume["hostPath"].is_null())
            .map(|volume| text(volume, "name"))
            .collect();
        (!paths.is_empty()).then(|| Fault {
            what: "hostPath volumes",
            detail: named("volume", &paths),
        })
    }

    fn host_ports(&self) -> Option<Fault> {
        let of = |container: &'v Value| {
            items(container, "ports").filter_map(|port| port["hostPort"].as_u64().filter(|port| *port != 0))
        };
        let bad =
            self.which(|container| items(container, "ports").any(|port| port["hostPort"].as_u64().unwrap_or(0) != 0));
        if bad.is_empty() {
            return None;
        }
        let ports: BTreeSet<String> = self.containers().flat_map(of).map(|port| port.to_string()).collect();
        let ports: Vec<String> = ports.into_iter().collect();
        Some(Fault::of(
            "hostPort",
            format!(
                "{} {} {} {}",
                named("container", &bad),
                uses(bad.len()),
                plural("hostPort", ports.len()),
                ports.join(", ")
            ),
        ))
    }

    fn probe_hosts(&self) -> Option<Fault> {
        let hosts = |container: &'v Value| -> Vec<&'v str> {
            let handlers = [
                "/livenessProbe",
                "/readinessProbe",
                "/startupProbe",
                "/lifecycle/postStart",
                "/lifecycle/preStop",
            ];
            handlers
                .iter()
                .filter_map(|pointer| container.pointer(pointer))
                .flat_map(|handler| [text(&handler["httpGet"], "host"), text(&handler["tcpSocket"], "host")])
                .filter(|host| !host.is_empty())
                .collect()
        };
        let bad: Vec<&Value> = self
            .containers()
            .filter(|container| !hosts(container).is_empty())
            .collect();
        if bad.is_empty() {
            return None;
        }
        let names: Vec<String> = distinct(bad.iter().map(|container| text(container, "name")));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = distinct(bad.iter().flat_map(|container| hosts(container)));
        Some(Fault::of(
            "probe or lifecycle host",
            format!(
                "{} {} {} {}",
                named("container", &names),
                uses(names.len()),
                plural("probe or lifecycle host", all.len()),
                quoted(&all)
            ),
        ))
    }

    fn privileged(&self) -> Option<Fault> {
        let bad = self.which(|container| container["securityContext"]["privileged"] == true);
        (!bad.is_empty()).then(|| Fault {
            what: "privileged",
            detail: format!(
                "{} must not set securityContext.privileged=true",
                named("container", &bad)
            ),
        })
    }

    fn proc_mounts(&self) -> Option<Fault> {
        let of = |container: &'v Value| text(&container["securityContext"], "procMount");
        let bad: Vec<&Value> = self
            .containers()
            .filter(|container| !matches!(of(container), "" | "Default"))
            .collect();
        if bad.is_empty() || self.has_own_users() {
            return None;
        }
        let names: Vec<&str> = bad.iter().map(|container| text(container, "name")).collect();
        Some(Fault::of(
            "procMount",
            format!(
                "{} must not set securityContext.procMount to {}",
                named("container", &names),
                quoted(&distinct(bad.iter().map(|container| of(container))))
            ),
        ))
    }

    fn volume_types(&self) -> Option<Fault> {
        let kind = |volume: &'v Value| -> Option<&'v str> {
            let fields = volume.as_object()?;
            let kind = fields
                .keys()
                .find(|name| *name != "name" && !volume[name.as_str()].is_null());
            Some(kind.map_or("unknown", String::as_str)).filter(|kind| !HARMLESS_VOLUMES.contains(kind))
        };
        let bad: Vec<(&str, &str)> = items(self.spec(), "volumes")
            .filter_map(|volume| Some((text(volume, "name"), kind(volume)?)))
            .collect();
        if bad.is_empty() {
            return None;
        }
        let names: Vec<&str> = bad.iter().map(|(name, _)| *name).collect();
        let kinds = distinct(bad.iter().map(|(_, kind)| *kind));
        Some(Fault::of(
            "restricted volume types",
            format!(
                "{} {} {} {}",
                named("volume", &names),
                uses(names.len()),
                plural("restricted volume type", kinds.len()),
                quoted(&kinds)
            ),
        ))
    }

    fn runs_as_root(&self) -> Option<Fault> {
        const WHAT: &str = "runAsNonRoot != true";
        if self.has_own_users() {
            return None;
        }
        let (who, _) = self.setters("runAsNonRoot", |value| *value == false);
        if !who.is_empty() {
            let detail = format!("{} must not set securityContext.runAsNonRoot=false", who.join(" and "));
            return Some(Fault::of(WHAT, detail));
        }
        let settled = self.spec()["securityContext"]["runAsNonRoot"] == true;
        let silent = self.which(|container| container["securityContext"]["runAsNonRoot"].is_null());
        (!settled && !silent.is_empty()).then(|| Fault {
            what: WHAT,
            detail: format!(
                "pod or {} must set securityContext.runAsNonRoot=true",
                named("container", &silent)
            ),
        })
    }

    fn root_user(&self) -> Option<Fault> {
        if self.has_own_users() {
            return None;
        }
        let (who, _) = self.setters("runAsUser", |value| *value == 0);
        (!who.is_empty()).then(|| Fault {
            what: "runAsUser=0",
            detail: format!("{} must not set runAsUser=0", who.join(" and ")),
        })
    }

    fn selinux(&self) -> Option<Fault> {
        const TYPES: [&str; 5] = [
            "",
            "container_t",
            "container_init_t",
            "container_kvm_t",
            "container_engine_t",
        ];
        let known = |options: &Value| TYPES.contains(&text(options, "type"));
        let set = |options: &Value, field: &str| !text(options, field).is_empty();
        let (who, values) = self.setters("seLinuxOptions", |options| {
            !known(options) || set(options, "user") || set(options, "role")
        });
        if who.is_empty() {
            return None;
        }
        let types = distinct(
            values
                .iter()
                .filter(|options| !known(options))
                .map(|options| text(options, "type")),
        );
        let mut said = Vec::new();
        if !types.is_empty() {
            said.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
        }
        for field in ["user", "role"] {
            if values.iter().any(|options| set(options, field)) {
                said.push(format!("{field} may not be set"));
            }
        }
        Some(Fault::of(
            "seLinuxOptions",
            format!(
                "{} set forbidden securityContext.seLinuxOptions: {}",
                who.join(" and "),
                said.join("; ")
            ),
        ))
    }

    fn seccomp(&self, restricted: bool) -> Option<Fault> {
        const WHAT: &str = "seccompProfile";
        let known = |profile: &Value| matches!(text(profile, "type"), "RuntimeDefault" | "Localhost");
        let (who, values) = self.setters("seccompProfile", |profile| !known(profile));
        if !who.is_empty() {
            let types = distinct(values.into_iter().map(|profile| text(profile, "type")));
            let detail = format!(
                "{} must not set securityContext.seccompProfile.type to {}",
                who.join(" and "),
                quoted(&types)
            );
            return Some(Fault::of(WHAT, detail));
        }
        let settled = !self.spec()["securityContext"]["seccompProfile"].is_null();
        let silent = self.which(|container| container["securityContext"]["seccompProfile"].is_null());
        (restricted && !settled && !silent.is_empty() && !self.on_windows()).then(|| Fault {
            what: WHAT,
            detail: format!(
                "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
                named("container", &silent)
            ),
        })
    }

    fn sysctls(&self) -> Option<Fault> {
        let unsafe_ones: Vec<&str> = items(&self.spec()["securityContext"], "sysctls")
            .map(|setting| text(setting, "name"))
            .filter(|name| !SAFE_SYSCTLS.contains(name))
            .collect();
        (!unsafe_ones.is_empty()).then(|| Fault {
            what: "forbidden sysctls",
            detail: unsafe_ones.join(", "),
        })
    }
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 {
        word.to_owned()
    } else {
        format!("{word}s")
    }
}

fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

/// Such as `containers "a", "b"`.
fn named(word: &str, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    format!("{} {}", plural(word, names.len()), quoted(&names))
}

fn quoted(names: &[String]) -> String {
    names
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

fn distinct<'v>(names: impl Iterator<Item = &'v str>) -> Vec<String> {
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plain_pod_is_baseline_and_not_restricted() {
        let pod = json!({ "spec": { "containers": [{ "name": "a" }, { "name": "b" }] } });
        assert_eq!(faults(&pod, Level::Baseline), None);
        assert_eq!(
            faults(&pod, Level::Restricted).unwrap(),
            "allowPrivilegeEscalation != false (containers \"a\", \"b\" must set \
             securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (containers \"a\", \"b\" must set \
             securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or containers \"a\", \"b\" must set \
             securityContext.runAsNonRoot=true), seccompProfile (pod or containers \"a\", \"b\" must set \
             securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
    }

    #[test]
    fn a_hardened_pod_is_restricted() {
        let pod = json!({ "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "containers": [{ "name": "a", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
            } }],
        } });
        assert_eq!(faults(&pod, Level::Restricted), None);
    }

    #[test]
    fn what_leads_out_of_a_container_is_below_the_baseline() {
        let pod = json!({ "spec": {
            "hostNetwork": true, "hostPID": true,
            "volumes": [{ "name": "v", "hostPath": { "path": "/" } }],
            "containers": [{
                "name": "a", "ports": [{ "hostPort": 80 }],
                "securityContext": { "privileged": true, "capabilities": { "add": ["SYS_ADMIN"] } },
            }],
        } });
        assert_eq!(
            faults(&pod, Level::Baseline).unwrap(),
            "non-default capabilities (container \"a\" must not include \"SYS_ADMIN\" in \
             securityContext.capabilities.add), host namespaces (hostNetwork=true, hostPID=true), hostPath volumes (volume \
             \"v\"), hostPort (container \"a\" uses hostPort 80), privileged (container \"a\" must not set \
             securityContext.privileged=true)"
        );
        assert_eq!(faults(&pod, Level::Privileged), None);
    }
}
