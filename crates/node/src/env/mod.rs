//! The environment of a container: literal values, references to other objects, to the pod itself and to services.
//!
//! Pure: what is referred to is named by [`references`], fetched by the caller, and handed to [`resolve`].

mod downward;
mod expand;
mod file;
mod services;

use std::collections::BTreeMap;

pub(crate) use downward::{Facts, field, resource};
pub(crate) use expand::expand;
pub(crate) use file::read as read_file;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Secret, Service};
pub(crate) use services::variables as service_variables;

/// Why an environment cannot be put together. The words are a kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("{kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        kind: &'static str,
        key: String,
        namespace: String,
        name: String,
    },
    #[error("environment file {path:?} in volume {volume:?} not found")]
    MissingFile { volume: String, path: String },
    #[error("environment variable key {key:?} not found in file {path:?}")]
    MissingVariable { key: String, path: String },
    #[error("{0}")]
    Field(String),
}

/// What an environment refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct References {
    pub(crate) config_maps: Vec<String>,
    pub(crate) secrets: Vec<String>,
    /// Files of variables: the volume, and the path in it.
    pub(crate) files: Vec<(String, String)>,
}

/// The objects referred to, by name. One that is not there is absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Objects {
    pub(crate) config_maps: BTreeMap<String, ConfigMap>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    /// The variables of files, by volume and path.
    pub(crate) files: BTreeMap<(String, String), BTreeMap<String, String>>,
}

/// What a container's environment refers to.
pub(crate) fn references(container: &Container) -> References {
    let mut found = References::default();
    for source in container.env_from.iter().flatten() {
        found
            .config_maps
            .extend(source.config_map_ref.as_ref().map(|map| map.name.clone()));
        found
            .secrets
            .extend(source.secret_ref.as_ref().map(|secret| secret.name.clone()));
    }
    for source in container
        .env
        .iter()
        .flatten()
        .filter_map(|variable| variable.value_from.as_ref())
    {
        found
            .config_maps
            .extend(source.config_map_key_ref.as_ref().map(|map| map.name.clone()));
        found
            .secrets
            .extend(source.secret_key_ref.as_ref().map(|secret| secret.name.clone()));
        let file = source.file_key_ref.as_ref();
        found
            .files
            .extend(file.map(|file| (file.volume_name.clone(), file.path.clone())));
    }
    found.files.sort();
    found.files.dedup();
    for list in [&mut found.config_maps, &mut found.secrets] {
        list.sort();
        list.dedup();
    }
    found
}

/// Puts a container's variables together. What is written later wins, and may use what was written before.
pub(crate) fn resolve(
    container: &Container,
    facts: &Facts<'_>,
    objects: &Objects,
    services: &[&Service],
) -> Result<BTreeMap<String, String>, EnvError> {
    let mut variables = BTreeMap::new();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or("");
        if let Some(wanted) = &source.config_map_ref {
            match objects.config_maps.get(&wanted.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        variables.insert(format!("{prefix}{key}"), value.clone());
                    }
                }
                None if wanted.optional == Some(true) => {}
                None => return Err(missing("configmap", &wanted.name)),
            }
        }
        if let Some(wanted) = &source.secret_ref {
            match objects.secrets.get(&wanted.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        let value = String::from_utf8_lossy(&value.0).into_owned();
                        variables.insert(format!("{prefix}{key}"), value);
                    }
                }
                None if wanted.optional == Some(true) => {}
                None => return Err(missing("secret", &wanted.name)),
            }
        }
    }
    let of_services = service_variables(services);
    for variable in container.env.iter().flatten() {
        let value = if let Some(source) = &variable.value_from {
            from_source(source, facts, objects)?
        } else {
            let text = variable.value.as_deref().unwrap_or("");
            let known = |name: &str| variables.get(name).or_else(|| of_services.get(name)).cloned();
            Some(expand(text, known))
        };
        if let Some(value) = value {
            variables.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in of_services {
        variables.entry(name).or_insert(value);
    }
    Ok(variables)
}

fn missing(kind: &'static str, name: &str) -> EnvError {
    EnvError::Missing {
        kind,
        name: name.to_owned(),
    }
}

fn from_source(
    source: &k8s_openapi::api::core::v1::EnvVarSource,
    facts: &Facts<'_>,
    objects: &Objects,
) -> Result<Option<String>, EnvError> {
    let namespace = facts.pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(wanted) = &source.field_ref {
        return field(facts, &wanted.field_path).map(Some).map_err(EnvError::Field);
    }
    if let Some(wanted) = &source.resource_field_ref {
        return resource(facts, wanted).map(Some).map_err(EnvError::Field);
    }
    if let Some(wanted) = &source.config_map_key_ref {
        let optional = wanted.optional == Some(true);
        let Some(map) = objects.config_maps.get(&wanted.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(missing("configmap", &wanted.name))
            };
        };
        return match map.data.as_ref().and_then(|data| data.get(&wanted.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(EnvError::MissingKey {
                kind: "ConfigMap",
                key: wanted.key.clone(),
                namespace,
                name: wanted.name.clone(),
            }),
        };
    }
    if let Some(wanted) = &source.secret_key_ref {
        let optional = wanted.optional == Some(true);
        let Some(secret) = objects.secrets.get(&wanted.name) else {
            return if optional {
                Ok(None)
            } else {
                Err(missing("secret", &wanted.name))
            };
        };
        return match secret.data.as_ref().and_then(|data| data.get(&wanted.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if optional => Ok(None),
            None => Err(EnvError::MissingKey {
                kind: "Secret",
                key: wanted.key.clone(),
                namespace,
                name: wanted.name.clone(),
            }),
        };
    }
    if let Some(wanted) = &source.file_key_ref {
        let optional = wanted.optional == Some(true);
        let place = (wanted.volume_name.clone(), wanted.path.clone());
        let variables = objects.files.get(&place);
        return match variables.map(|variables| variables.get(&wanted.key)) {
            Some(Some(value)) => Ok(Some(value.clone())),
            _ if optional => Ok(None),
            Some(None) => Err(EnvError::MissingVariable {
                key: wanted.key.clone(),
                path: wanted.path.clone(),
            }),
            None => Err(EnvError::MissingFile {
                volume: wanted.volume_name.clone(),
                path: wanted.path.clone(),
            }),
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
