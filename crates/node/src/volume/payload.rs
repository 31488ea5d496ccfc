//! The files that a configMap, secret, downwardAPI or projected volume shows, from the objects behind it.
//!
//! Pure. Which objects are needed is named by [`Wants::of`]; the caller fetches them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Secret, ServiceAccountTokenProjection, Volume,
};

use crate::env::{Facts, field, resource};

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    pub(crate) mode: u32,
}

/// The files of a volume by their path inside it.
pub(crate) type Payload = BTreeMap<String, File>;

/// What has to be fetched before the files of a volume are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wants {
    pub(crate) config_maps: Vec<String>,
    pub(crate) secrets: Vec<String>,
    pub(crate) tokens: Vec<ServiceAccountTokenProjection>,
}

/// What was fetched. An object that is not there is absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetched {
    pub(crate) config_maps: BTreeMap<String, ConfigMap>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    /// Tokens by the path at which they are shown.
    pub(crate) tokens: BTreeMap<String, String>,
}

const DEFAULT_MODE: i32 = 0o644;

impl Wants {
    /// What a volume needs; nothing for a volume that is not made of objects.
    pub(crate) fn of(volume: &Volume) -> Option<Self> {
        let mut wants = Self::default();
        if let Some(source) = &volume.config_map {
            wants.config_maps.push(source.name.clone());
        } else if let Some(source) = &volume.secret {
            wants.secrets.extend(source.secret_name.clone());
        } else if let Some(source) = &volume.projected {
            for part in source.sources.iter().flatten() {
                wants
                    .config_maps
                    .extend(part.config_map.as_ref().map(|map| map.name.clone()));
                wants
                    .secrets
                    .extend(part.secret.as_ref().map(|secret| secret.name.clone()));
                wants.tokens.extend(part.service_account_token.clone());
            }
        } else if volume.downward_api.is_none() {
            return None;
        }
        Some(wants)
    }
}

/// The files of a volume. An error is what a kubelet says of a volume that cannot be set up.
pub(crate) fn payload(volume: &Volume, facts: &Facts<'_>, fetched: &Fetched) -> Result<Payload, String> {
    let mut files = Payload::new();
    let namespace = facts.pod.metadata.namespace.as_deref().unwrap_or("");
    if let Some(source) = &volume.config_map {
        let map = Source::config_map(&source.name, fetched.config_maps.get(&source.name));
        map.put(
            &mut files,
            source.items.as_deref(),
            source.default_mode,
            source.optional,
            namespace,
        )?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or("");
        let secret = Source::secret(name, fetched.secrets.get(name));
        secret.put(
            &mut files,
            source.items.as_deref(),
            source.default_mode,
            source.optional,
            namespace,
        )?;
    } else if let Some(source) = &volume.downward_api {
        downward(&mut files, source.items.as_deref(), source.default_mode, facts)?;
    } else if let Some(source) = &volume.projected {
        let mode = source.default_mode;
        for part in source.sources.iter().flatten() {
            if let Some(wanted) = &part.config_map {
                let map = Source::config_map(&wanted.name, fetched.config_maps.get(&wanted.name));
                map.put(&mut files, wanted.items.as_deref(), mode, wanted.optional, namespace)?;
            }
            if let Some(wanted) = &part.secret {
                let secret = Source::secret(&wanted.name, fetched.secrets.get(&wanted.name));
                secret.put(&mut files, wanted.items.as_deref(), mode, wanted.optional, namespace)?;
            }
            if let Some(wanted) = &part.downward_api {
                downward(&mut files, wanted.items.as_deref(), mode, facts)?;
            }
            if let Some(wanted) = &part.service_account_token {
                let Some(token) = fetched.tokens.get(&wanted.path) else {
                    return Err(format!("failed to fetch token: none was issued for {:?}", wanted.path));
                };
                put(&mut files, &wanted.path, token.clone().into_bytes(), None, mode);
            }
        }
    }
    Ok(files)
}

fn put(files: &mut Payload, path: &str, content: Vec<u8>, mode: Option<i32>, default: Option<i32>) {
    let mode = mode.or(default).unwrap_or(DEFAULT_MODE);
    let mode = u32::try_from(mode).unwrap_or(0o644) & 0o777;
    files.insert(path.trim_start_matches('/').to_owned(), File { content, mode });
}

/// The keys of a config map or secret.
struct Source<'a> {
    kind: &'static str,
    name: &'a str,
    data: Option<BTreeMap<&'a str, Vec<u8>>>,
}

impl<'a> Source<'a> {
    fn config_map(name: &'a str, object: Option<&'a ConfigMap>) -> Self {
        let data = object.map(|map| {
            let text = map
                .data
                .iter()
                .flatten()
                .map(|(key, value)| (key.as_str(), value.clone().into_bytes()));
            let binary = map
                .binary_data
                .iter()
                .flatten()
                .map(|(key, value)| (key.as_str(), value.0.clone()));
            text.chain(binary).collect()
        });
        Self {
            kind: "configmap",
            name,
            data,
        }
    }

    fn secret(name: &'a str, object: Option<&'a Secret>) -> Self {
        let data = object.map(|secret| {
            let data = secret.data.iter().flatten();
            data.map(|(key, value)| (key.as_str(), value.0.clone())).collect()
        });
        Self {
            kind: "secret",
            name,
            data,
        }
    }

    fn put(
        self,
        files: &mut Payload,
        items: Option<&[KeyToPath]>,
        mode: Option<i32>,
        optional: Option<bool>,
        namespace: &str,
    ) -> Result<(), String> {
        let optional = optional == Some(true);
        let Some(data) = self.data else {
            return if optional {
                Ok(())
            } else {
                Err(format!("{} {:?} not found", self.kind, self.name))
            };
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, content) in data {
                put(files, key, content, None, mode);
            }
            return Ok(());
        };
        for item in items {
            match data.get(item.key.as_str()) {
                Some(content) => put(files, &item.path, content.clone(), item.mode, mode),
                None if optional => {}
                None if self.kind == "secret" => {
                    return Err(format!("references non-existent secret key: {}", item.key));
                }
                None => return Err(format!("configmap references non-existent config key: {}", item.key)),
            }
        }
        let _ = namespace;
        Ok(())
    }
}

fn downward(
    files: &mut Payload,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: Option<i32>,
    facts: &Facts<'_>,
) -> Result<(), String> {
    for item in items.into_iter().flatten() {
        let value = if let Some(wanted) = &item.field_ref {
            field(facts, &wanted.field_path)?
        } else if let Some(wanted) = &item.resource_field_ref {
            resource(facts, wanted)?
        } else {
            continue;
        };
        put(files, &item.path, value.into_bytes(), item.mode, mode);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::amounts::Amounts;

    fn shown(volume: serde_json::Value, fetched: &Fetched) -> Result<Payload, String> {
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "labels": { "a": "1" } },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1250m" } } }] },
        }))
        .unwrap();
        let facts = Facts {
            pod: &pod,
            container: None,
            pod_ips: &[],
            host_ips: &[],
            allocatable: &Amounts::default(),
        };
        payload(&volume, &facts, fetched)
    }

    fn map() -> Fetched {
        let map =
            serde_json::from_value(json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "AAE=" } })).unwrap();
        Fetched {
            config_maps: [("m".to_owned(), map)].into(),
            ..Fetched::default()
        }
    }

    #[test]
    fn every_key_is_a_file_unless_items_choose() {
        let all = shown(json!({ "name": "v", "configMap": { "name": "m" } }), &map()).unwrap();
        assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(all["c"].content, [0, 1]);
        assert_eq!(all["a"].mode, 0o644);
        let volume = json!({ "name": "v", "configMap": { "name": "m", "defaultMode": 0o400,
            "items": [{ "key": "a", "path": "x/y" }, { "key": "b", "path": "z", "mode": 0o777 }] } });
        let some = shown(volume, &map()).unwrap();
        assert_eq!((some["x/y"].mode, some["z"].mode), (0o400, 0o777));
        assert_eq!(some.len(), 2);
    }

    #[test]
    fn what_is_missing_is_said_unless_it_is_optional() {
        let nothing = Fetched::default();
        let missing = shown(json!({ "name": "v", "secret": { "secretName": "s" } }), &nothing);
        assert_eq!(missing.unwrap_err(), "secret \"s\" not found");
        let optional = shown(
            json!({ "name": "v", "secret": { "secretName": "s", "optional": true } }),
            &nothing,
        );
        assert!(optional.unwrap().is_empty());
        let key = json!({ "name": "v", "configMap": { "name": "m", "items": [{ "key": "q", "path": "q" }] } });
        assert_eq!(
            shown(key, &map()).unwrap_err(),
            "configmap references non-existent config key: q"
        );
    }

    #[test]
    fn a_projection_shows_its_sources_together() {
        let mut fetched = map();
        fetched.tokens.insert("token".to_owned(), "abc".to_owned());
        let volume = json!({ "name": "v", "projected": { "sources": [
            { "configMap": { "name": "m", "items": [{ "key": "a", "path": "a" }] } },
            { "serviceAccountToken": { "path": "token" } },
            { "downwardAPI": { "items": [
                { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
                { "path": "cpu", "resourceFieldRef": { "containerName": "c", "resource": "limits.cpu" } },
            ] } },
        ] } });
        let files = shown(volume, &fetched).unwrap();
        assert_eq!(files["labels"].content, b"a=\"1\"");
        assert_eq!(files["cpu"].content, b"2");
        assert_eq!(files["token"].content, b"abc");
        assert_eq!(files["a"].content, b"1");
    }
}
