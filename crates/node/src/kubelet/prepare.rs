//! Making a pod ready for its containers: volumes, network, names, namespaces.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use moorline_container as run;
use moorline_network::{self as net, files};

use super::{
    adopt,
    context::{NodeContext, net_id, run_id},
    spec,
};
use crate::{
    env::Facts,
    volume::{Setting, Volumes, set_up},
};

/// A pod that its containers can be started in.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) volumes: Volumes,
}

/// Why a pod is not ready for its containers: the event that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unready {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Makes everything ready. Can be repeated; what is there already stays.
pub(crate) async fn prepare(context: &NodeContext, pod: &Pod) -> Result<Ready, Unready> {
    let volumes = volumes(context, pod, &[]).await?;
    let sandbox = |message: String| Unready {
        reason: "FailedCreatePodSandBox",
        message: format!("Failed to create pod sandbox: {message}"),
    };
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let id = run_id(pod).map_err(sandbox)?;
    let (network, ips) = if spec.host_network == Some(true) {
        (run::Network::Host, context.addresses.clone())
    } else {
        let attached = attach(context, pod).await.map_err(sandbox)?;
        (
            run::Network::Namespace(attached.namespace),
            vec![IpAddr::V4(attached.address)],
        )
    };
    write_files(context, pod, &ips).map_err(|error| sandbox(error.to_string()))?;
    let exists = match context.shared.runtime.pod(&id) {
        Ok(status) if status.lost => {
            context
                .shared
                .runtime
                .remove_pod(&id)
                .await
                .map_err(|error| sandbox(told(&error)))?;
            false
        }
        Ok(_) => true,
        Err(_) => false,
    };
    if !exists {
        let (hostname, _) = spec::hostname(pod, &context.shared.domain);
        let labels = adopt::labels::of_pod(pod, &context.name);
        let made = spec::sandbox(pod, id, &hostname, network, &volumes, labels).map_err(sandbox)?;
        context
            .shared
            .runtime
            .create_pod(made)
            .await
            .map_err(|error| sandbox(told(&error)))?;
    }
    Ok(Ready { ips, volumes })
}

/// Makes the volumes of a pod ready, or finds them so.
pub(crate) async fn volumes(context: &NodeContext, pod: &Pod, ips: &[IpAddr]) -> Result<Volumes, Unready> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let facts = Facts {
        pod,
        container: None,
        pod_ips: ips,
        host_ips: &context.addresses,
        allocatable: &context.allocatable,
    };
    let setting = Setting {
        client: &context.client,
        directory: &context.shared.volume_directory(uid),
        private: &context.shared.private_directory(uid),
        facts: &facts,
    };
    set_up(&setting).await.map_err(|failure| Unready {
        reason: "FailedMount",
        message: failure.to_string(),
    })
}

async fn attach(context: &NodeContext, pod: &Pod) -> Result<net::PodNetwork, String> {
    let id = net_id(pod)?;
    let attachment = attachment(context, pod)?;
    let network = context.shared.network.clone();
    let attached = tokio::task::spawn_blocking(move || network.attach(&id, &attachment)).await;
    attached
        .map_err(|error| error.to_string())?
        .map_err(|error| told(&error))
}

fn attachment(context: &NodeContext, pod: &Pod) -> Result<net::Attachment, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let sysctls = spec
        .security_context
        .iter()
        .flat_map(|security| security.sysctls.iter().flatten());
    let sysctls = sysctls.filter(|sysctl| sysctl.name.starts_with("net"));
    let mut host_ports = Vec::new();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for port in containers.flat_map(|container| container.ports.iter().flatten()) {
        let Some(number) = port
            .host_port
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
        else {
            continue;
        };
        let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "0.0.0.0");
        let address = address.map(str::parse).transpose().map_err(|_| {
            format!(
                "hostIP {:?} is not an IPv4 address",
                port.host_ip.as_deref().unwrap_or("")
            )
        })?;
        host_ports.push(net::HostPort {
            address,
            port: number,
            protocol: protocol(port.protocol.as_deref()),
            pod_port: u16::try_from(port.container_port).unwrap_or(0),
        });
    }
    Ok(net::Attachment {
        node: context.network_name.clone(),
        host_ports,
        sysctls: sysctls
            .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone()))
            .collect(),
    })
}

/// A protocol by its name in the API.
pub(crate) fn protocol(name: Option<&str>) -> net::Protocol {
    match name {
        Some("UDP") => net::Protocol::Udp,
        Some("SCTP") => net::Protocol::Sctp,
        _ => net::Protocol::Tcp,
    }
}

/// The files of a pod that all its containers see: host names, name servers, its own name.
pub(crate) fn shared_files(directory: &Path) -> [(PathBuf, PathBuf); 3] {
    [
        (PathBuf::from("/etc/hosts"), directory.join("etc-hosts")),
        (PathBuf::from("/etc/resolv.conf"), directory.join("resolv.conf")),
        (PathBuf::from("/etc/hostname"), directory.join("hostname")),
    ]
}

fn write_files(context: &NodeContext, pod: &Pod, ips: &[IpAddr]) -> std::io::Result<()> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let directory = context.shared.pod_directory(uid);
    fs::create_dir_all(&directory)?;
    let (hostname, full) = spec::hostname(pod, &context.shared.domain);
    let texts = [
        hosts(pod, ips, &hostname, full),
        resolvers(context, pod),
        format!("{hostname}\n"),
    ];
    for ((_, path), text) in shared_files(&directory).iter().zip(texts) {
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

fn hosts(pod: &Pod, ips: &[IpAddr], hostname: &str, full: Option<String>) -> String {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let aliases = spec.host_aliases.iter().flatten().filter_map(|alias| {
        Some(files::HostAlias {
            address: alias.ip.parse().ok()?,
            names: alias.hostnames.clone().unwrap_or_default(),
        })
    });
    let mut names: Vec<String> = full.into_iter().collect();
    if !names.iter().any(|name| name == hostname) {
        names.push(hostname.to_owned());
    }
    let on_host = spec.host_network == Some(true);
    let hosts = files::Hosts {
        heading: if on_host {
            "Kubernetes-managed hosts file (host network).".to_owned()
        } else {
            "Kubernetes-managed hosts file.".to_owned()
        },
        addresses: ips.to_vec(),
        names,
        aliases: aliases.collect(),
    };
    if on_host {
        hosts.render_over(&fs::read_to_string("/etc/hosts").unwrap_or_default())
    } else {
        hosts.render()
    }
}

fn resolvers(context: &NodeContext, pod: &Pod) -> String {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let policy = match spec.dns_policy.as_deref() {
        Some("None") => files::DnsPolicy::None,
        Some("Default") => files::DnsPolicy::Machine,
        Some("ClusterFirstWithHostNet") => files::DnsPolicy::ClusterFirst,
        _ if spec.host_network == Some(true) => files::DnsPolicy::Machine,
        _ => files::DnsPolicy::ClusterFirst,
    };
    let cluster = files::ClusterNames {
        nameserver: context.shared.nameserver,
        domain: context.shared.domain.clone(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
    };
    let config = spec.dns_config.clone().unwrap_or_default();
    let options = config.options.into_iter().flatten().filter_map(|option| {
        let name = option.name?;
        Some(
            option
                .value
                .filter(|value| !value.is_empty())
                .map_or(name.clone(), |value| format!("{name}:{value}")),
        )
    });
    let added = files::Resolvers {
        nameservers: config
            .nameservers
            .into_iter()
            .flatten()
            .filter_map(|server| server.parse().ok())
            .collect(),
        searches: config.searches.unwrap_or_default(),
        options: options.collect(),
    };
    files::Resolvers::for_pod(policy, &cluster, &files::Resolvers::of_machine(), &added).render()
}

/// An error with everything behind it.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The ports of a container by name.
pub(crate) fn ports(container: &k8s_openapi::api::core::v1::Container) -> BTreeMap<String, u16> {
    let ports = container.ports.iter().flatten();
    let named = ports.filter_map(|port| Some((port.name.clone()?, u16::try_from(port.container_port).ok()?)));
    named.collect()
}
