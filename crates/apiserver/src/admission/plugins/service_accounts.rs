//! A pod runs as a service account, and finds the account's token where clients look for it.

use std::time::Duration;

use moorline_machinery::{meta, status::ApiError};
use moorline_store::{Key, Scope, Start};
use serde_json::{Value, json};

use super::{Attributes, containers_mut, items, push, text};
use crate::builtin;

const DEFAULT: &str = "default";
/// Where clients look for the token of their pod.
const MOUNTED_AT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// How long a token lasts, in seconds: an hour and a little, by which the node knows that it may be renewed late.
const LASTS: u32 = 3607;
/// How long a pod waits for the default account of a namespace that was just made.
const PATIENCE: Duration = Duration::from_secs(2);
/// Marks the copy of a pod that a node runs by itself.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// By this annotation a service account says that its pods use its own secrets alone.
const OWN_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

pub(super) async fn fill_in(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if !attributes.is_pod() || !attributes.creates() || is_mirror(pod) {
        return Ok(());
    }
    if text(&pod["spec"], "serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = DEFAULT.into();
    }
    // The older name of the same field.
    pod["spec"]["serviceAccount"] = pod["spec"]["serviceAccountName"].clone();
    let name = text(&pod["spec"], "serviceAccountName").to_owned();
    let account = match look_up(attributes, &name) {
        Ok(account) => account,
        Err(_) if name == DEFAULT => {
            await_default(attributes).await;
            look_up(attributes, &name)?
        }
        Err(error) => return Err(error),
    };
    let mounts = [&pod["spec"], &account]
        .into_iter()
        .find_map(|holder| holder["automountServiceAccountToken"].as_bool());
    if mounts.unwrap_or(true) {
        mount_token(pod, &meta::name_suffix(attributes.call.core.world.random()));
    }
    if items(&pod["spec"], "imagePullSecrets").next().is_none() {
        let secrets: Vec<Value> = items(&account, "imagePullSecrets")
            .map(|secret| json!({ "name": secret["name"] }))
            .collect();
        if !secrets.is_empty() {
            pod["spec"]["imagePullSecrets"] = secrets.into();
        }
    }
    Ok(())
}

fn is_mirror(pod: &Value) -> bool {
    meta::of(pod).annotation(MIRROR).is_some()
}

fn look_up(attributes: &Attributes<'_>, name: &str) -> Result<Value, ApiError> {
    let namespace = &attributes.call.path.namespace;
    let account = attributes.found("", "serviceaccounts", namespace, name);
    account.ok_or_else(|| {
        attributes.refuse(format_args!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        ))
    })
}

/// The default account of a namespace is made right after it.
async fn await_default(attributes: &Attributes<'_>) {
    let store = &attributes.call.core.store;
    let storage = builtin::storage("", "serviceaccounts");
    let key = Key::new(&storage, attributes.call.path.namespace.as_str(), DEFAULT);
    let Ok(mut watch) = store.watch(Scope::Object(key.clone()), Start::Now) else {
        return;
    };
    if store.get(&key).is_none() {
        let event = std::future::poll_fn(|context| watch.poll_next(context));
        // Without an event in time there is nothing to be found either.
        let _ = tokio::time::timeout(PATIENCE, event).await;
    }
}

fn mount_token(pod: &mut Value, suffix: &str) {
    let own = items(&pod["spec"], "volumes")
        .map(|volume| text(volume, "name"))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let name = own.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in containers_mut(pod, list) {
            let taken = items(container, "volumeMounts").any(|mount| text(mount, "mountPath") == MOUNTED_AT);
            if !taken {
                let mount = json!({ "name": name, "readOnly": true, "mountPath": MOUNTED_AT });
                push(container, "volumeMounts", mount);
                needed = true;
            }
        }
    }
    if needed && own.is_none() {
        let volume = json!({ "name": name, "projected": { "defaultMode": 0o644, "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": LASTS } },
            { "configMap": {
                "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }],
            } },
            { "downwardAPI": { "items": [{
                "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
            }] } },
        ] } });
        push(&mut pod["spec"], "volumes", volume);
    }
}

pub(super) fn check(attributes: &Attributes<'_>, pod: &Value) -> Result<(), ApiError> {
    if !attributes.is_pod() || !attributes.creates() {
        return Ok(());
    }
    if is_mirror(pod) {
        return check_mirror(attributes, pod);
    }
    let namespace = &attributes.call.path.namespace;
    let name = text(&pod["spec"], "serviceAccountName");
    if name.is_empty() {
        return Err(attributes.refuse(format_args!(
            "no service account specified for pod {namespace}/{}",
            attributes.name
        )));
    }
    let account = look_up(attributes, name)?;
    let enforced = meta::of(&account).annotation(OWN_SECRETS);
    if matches!(enforced, Some("1" | "t" | "T" | "true" | "TRUE" | "True")) {
        check_secrets(attributes, pod, &account)?;
    }
    Ok(())
}

fn check_mirror(attributes: &Attributes<'_>, pod: &Value) -> Result<(), ApiError> {
    if !text(&pod["spec"], "serviceAccountName").is_empty() {
        return Err(attributes.refuse("a mirror pod may not reference service accounts"));
    }
    let volumes = || items(&pod["spec"], "volumes");
    if volumes().any(|volume| !volume["secret"].is_null()) || secrets_of_containers(pod).next().is_some() {
        return Err(attributes.refuse("a mirror pod may not reference secrets"));
    }
    let mut sources = volumes().flat_map(|volume| items(&volume["projected"], "sources"));
    if sources.any(|source| !source["serviceAccountToken"].is_null()) {
        return Err(attributes.refuse("a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

/// What containers take from secrets: who takes it, and the secret's name.
fn secrets_of_containers(pod: &Value) -> impl Iterator<Item = (String, &str)> {
    let lists = [("init container", "initContainers"), ("container", "containers")];
    lists.into_iter().flat_map(move |(word, list)| {
        items(&pod["spec"], list).flat_map(move |container| {
            let who = format!("{word} {}", text(container, "name"));
            let by_all = who.clone();
            let variables = items(container, "env").filter_map(move |variable| {
                let secret = variable.pointer("/valueFrom/secretKeyRef/name")?.as_str()?;
                Some((format!("{who} with envVar {}", text(variable, "name")), secret))
            });
            let all = items(container, "envFrom").filter_map(move |from| {
                let secret = from.pointer("/secretRef/name")?.as_str()?;
                Some((format!("{by_all} with envFrom"), secret))
            });
            variables.chain(all)
        })
    })
}

fn check_secrets(attributes: &Attributes<'_>, pod: &Value, account: &Value) -> Result<(), ApiError> {
    let name = meta::of(account).name();
    let has = |list: &str, secret: &str| items(account, list).any(|own| text(own, "name") == secret);
    let mut volumes =
        items(&pod["spec"], "volumes").filter_map(|volume| volume.pointer("/secret/secretName")?.as_str());
    if let Some(secret) = volumes.find(|secret| !has("secrets", secret)) {
        return Err(attributes.refuse(format_args!(
            "volume with secret.secretName=\"{secret}\" is not allowed because service account {name} does not \
             reference that secret"
        )));
    }
    if let Some((who, secret)) = secrets_of_containers(pod).find(|(_, secret)| !has("secrets", secret)) {
        return Err(attributes.refuse(format_args!(
            "{who} referencing secret.secretName=\"{secret}\" is not allowed because service account {name} does not \
             reference that secret"
        )));
    }
    for (index, secret) in items(&pod["spec"], "imagePullSecrets").enumerate() {
        let secret = text(secret, "name");
        if !has("imagePullSecrets", secret) {
            return Err(attributes.refuse(format_args!(
                "imagePullSecrets[{index}].name=\"{secret}\" is not allowed because service account {name} does not \
                 reference that imagePullSecret"
            )));
        }
    }
    Ok(())
}

/// The volume by which a pod gets its token, if it was given one.
#[cfg(test)]
pub(super) fn token_volume(pod: &Value) -> Option<&Value> {
    items(&pod["spec"], "volumes").find(|volume| text(volume, "name").starts_with(VOLUME_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_that_mounts_nothing_there_gets_the_token() {
        let mut pod = json!({ "spec": {
            "initContainers": [{ "name": "i" }],
            "containers": [{ "name": "a" }, { "name": "b", "volumeMounts": [{ "name": "own", "mountPath": MOUNTED_AT }] }],
        } });
        mount_token(&mut pod, "x7x7x");
        assert_eq!(token_volume(&pod).unwrap()["name"], "kube-api-access-x7x7x");
        let mounted = |list: &str, at: usize| pod["spec"][list][at]["volumeMounts"][0]["name"].clone();
        assert_eq!(mounted("initContainers", 0), "kube-api-access-x7x7x");
        assert_eq!(mounted("containers", 0), "kube-api-access-x7x7x");
        assert_eq!(mounted("containers", 1), "own");
    }

    #[test]
    fn a_pod_whose_containers_all_have_their_own_gets_no_volume() {
        let mut pod = json!({ "spec": { "containers": [
            { "name": "b", "volumeMounts": [{ "name": "own", "mountPath": MOUNTED_AT }] },
        ] } });
        let before = pod.clone();
        mount_token(&mut pod, "x");
        assert_eq!(pod, before);
    }
}
