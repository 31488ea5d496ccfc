//! Where a service that a webhook names can be reached from this server.

use std::net::SocketAddr;

use moorline_store::{Key, Store};

use crate::{builtin, custom::webhook_client::FindService, wire};

/// Looks services up in the store.
pub(crate) struct StoredServices(pub(crate) Store);

impl FindService for StoredServices {
    fn find(&self, namespace: &str, name: &str, port: u16) -> Result<SocketAddr, String> {
        let key = Key::new(&builtin::storage("", "services"), namespace, name);
        let Some(record) = self.0.get(&key) else {
            return Err(format!("service {name:?} not found"));
        };
        let service = wire::from_stored(record.value(), "v1", "Service");
        let has_port = service["spec"]["ports"]
            .as_array()
            .is_some_and(|ports| ports.iter().any(|candidate| candidate["port"] == port));
        if !has_port {
            return Err(format!("no service port {port} found for service {name:?}"));
        }
        let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        let address = address
            .parse()
            .map_err(|_| format!("service {namespace}/{name} has no address"))?;
        Ok(SocketAddr::new(address, port))
    }
}
