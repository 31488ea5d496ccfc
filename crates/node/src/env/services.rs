//! The variables by which containers of old find services.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

/// `REDIS_SERVICE_HOST`, `REDIS_PORT_6379_TCP_ADDR` and their kin, for every service with an address.
pub(crate) fn variables(services: &[&Service]) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else {
            continue;
        };
        let name = upper(service.metadata.name.as_deref().unwrap_or(""));
        let ports = spec.ports.as_deref().unwrap_or_default();
        let Some(first) = ports.first() else { continue };
        variables.insert(format!("{name}_SERVICE_HOST"), ip.to_owned());
        variables.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        };
        for (index, port) in ports.iter().enumerate() {
            if let Some(port_name) = port.name.as_deref().filter(|port_name| !port_name.is_empty()) {
                variables.insert(
                    format!("{name}_SERVICE_PORT_{}", upper(port_name)),
                    port.port.to_string(),
                );
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let lower = protocol.to_lowercase();
            let url = format!("{lower}://{host}:{}", port.port);
            if index == 0 {
                variables.insert(format!("{name}_PORT"), url.clone());
            }
            let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
            variables.insert(format!("{prefix}_PROTO"), lower);
            variables.insert(format!("{prefix}_PORT"), port.port.to_string());
            variables.insert(format!("{prefix}_ADDR"), ip.to_owned());
            variables.insert(prefix, url);
        }
    }
    variables
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
