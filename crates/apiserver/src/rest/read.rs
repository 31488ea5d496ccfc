//! Get and list.

use std::num::NonZeroUsize;

use base64::{DecodeError, Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::BytesMut;
use moorline_machinery::{
    decode::{self, Limits},
    selector::FieldSelector,
    status::ApiError,
};
use moorline_store::{At, Key, List, More, Page, ReadError, Record, Revision, Scope};
use serde::{Deserialize, Serialize};

use super::Call;
use crate::{
    custom,
    query::{ListOptions, VersionMatch},
    resource::ResourceType,
    select::Selection,
};

/// The page of a list, ready to be put into whatever form.
pub(crate) struct Listed {
    pub(crate) page: Page,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<NonZeroUsize>,
}

/// Lists what a request asks for.
pub(crate) async fn list(call: &Call<'_>, options: &ListOptions) -> Result<Listed, ApiError> {
    let resource = &call.resource;
    let selection = Selection::new(resource, options)?;
    let scope = scope(resource, &call.path.namespace, &call.path.name, &options.fields);
    let limit = options.limit.filter(|_| options.resource_version != Some(0));
    let mut list = List {
        scope,
        at: moment(options),
        after: None,
        limit,
    };
    if let Some(token) = &options.continue_token {
        let token = Token::decode(token)?;
        list.at = u64::try_from(token.rv).map_or(At::Latest, |revision| At::Exactly(Revision::new(revision)));
        list.after = Some(Key::new(&resource.storage, token.namespace(), token.name()));
    }
    let page = if selection.is_everything() {
        call.core.store.list(&list)
    } else {
        call.core
            .store
            .list_matching(&list, |record| selection.contains(record))
    };
    let mut page = page.map_err(|error| refused(&error, list.after.as_ref()))?;
    if selection.waits_for_conversion() {
        let served = custom::served(resource, &page.records).await?;
        let mut meant = served.iter().map(|object| selection.contains_served(object));
        page.records.retain(|_| meant.next().unwrap_or(false));
    }
    let continue_token = page
        .more
        .as_ref()
        .map(|more| Token::after(&more.after, page.revision).encode());
    let remaining = page
        .more
        .as_ref()
        .filter(|_| selection.is_everything())
        .map(|More { remaining, .. }| *remaining);
    Ok(Listed {
        page,
        continue_token: continue_token.unwrap_or_default(),
        remaining,
    })
}

/// As of when a list is wanted.
fn moment(options: &ListOptions) -> At {
    match (options.resource_version, options.version_match) {
        (None | Some(0), _) => At::Latest,
        (Some(revision), Some(VersionMatch::Exact)) => At::Exactly(Revision::new(revision)),
        // A page at a revision was asked for before there was a word for it.
        (Some(revision), None) if options.limit.is_some() => At::Exactly(Revision::new(revision)),
        (Some(revision), _) => At::NotOlderThan(Revision::new(revision)),
    }
}

/// What a list or a watch looks at: as little as its path and its fields allow.
pub(crate) fn scope(resource: &ResourceType, namespace: &str, name: &str, fields: &FieldSelector) -> Scope {
    let name = if name.is_empty() {
        fields.exact("metadata.name").unwrap_or_default()
    } else {
        name
    };
    let namespace = if namespace.is_empty() {
        fields.exact("metadata.namespace").unwrap_or_default()
    } else {
        namespace
    };
    match (resource.namespaced, namespace, name) {
        (true, "", _) | (false, _, "") => Scope::Resource(resource.storage.clone()),
        (true, namespace, "") => Scope::namespace(&resource.storage, namespace),
        (true, namespace, name) => Scope::Object(Key::new(&resource.storage, namespace, name)),
        (false, _, name) => Scope::Object(Key::new(&resource.storage, "", name)),
    }
}

fn refused(error: &ReadError, after: Option<&Key>) -> ApiError {
    match error {
        ReadError::Future { requested, current } => {
            ApiError::resource_version_too_large(requested.get(), current.get())
        }
        ReadError::Compacted { requested, oldest } => match after {
            Some(after) => ApiError::continue_expired(Some(&Token::inconsistent(after).encode())),
            None => ApiError::watch_too_old(requested.get(), oldest.get()),
        },
    }
}

/// One object, not older than asked for.
pub(crate) fn get(call: &Call<'_>, resource_version: Option<u64>) -> Result<std::sync::Arc<Record>, ApiError> {
    let key = call.key();
    let at = match resource_version {
        None | Some(0) => At::Latest,
        Some(revision) => At::NotOlderThan(Revision::new(revision)),
    };
    let (record, _) = call
        .core
        .store
        .get_at(&key, at)
        .map_err(|error| refused(&error, None))?;
    record.ok_or_else(|| ApiError::not_found(&call.resource.group_resource(), &call.path.name))
}

/// The JSON of a list of stored objects.
pub(crate) fn whole_list(resource: &ResourceType, listed: &Listed, items_with_type: bool) -> BytesMut {
    let records = &listed.page.records;
    let size: usize = records.iter().map(|record| record.value().len() + 64).sum();
    let mut bytes = BytesMut::with_capacity(size + 256);
    let api_version = resource.gvk.api_version();
    let metadata = list_metadata(resource, listed);
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[",
        resource.list_kind
    );
    bytes.extend_from_slice(head.as_bytes());
    for (index, record) in records.iter().enumerate() {
        if index > 0 {
            bytes.extend_from_slice(b",");
        }
        if items_with_type {
            resource.prefix.append(&mut bytes, record.value());
        } else {
            bytes.extend_from_slice(record.value());
        }
    }
    bytes.extend_from_slice(b"]}\n");
    bytes
}

/// The metadata of a list. Lists of custom kinds say that they do not go on, others say nothing.
pub(crate) fn list_metadata(resource: &ResourceType, listed: &Listed) -> serde_json::Value {
    let mut metadata = serde_json::json!({ "resourceVersion": listed.page.revision.to_string() });
    if !listed.continue_token.is_empty() || resource.strategy.as_custom().is_some() {
        metadata["continue"] = listed.continue_token.clone().into();
    }
    if let Some(remaining) = listed.remaining {
        metadata["remainingItemCount"] = remaining.get().into();
    }
    metadata
}

/// Where a list goes on. Opaque to clients, in the shape that Kubernetes gives it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl Token {
    fn after(key: &Key, revision: Revision) -> Self {
        let rv = i64::try_from(revision.get()).unwrap_or(i64::MAX);
        Self {
            v: TOKEN_VERSION.to_owned(),
            rv,
            start: format!("{}/{}\0", key.namespace(), key.name()),
        }
    }

    /// For a list whose moment has passed: it may go on with how things are now.
    fn inconsistent(key: &Key) -> Self {
        Self {
            rv: -1,
            ..Self::after(key, Revision::new(0))
        }
    }

    fn namespace(&self) -> &str {
        self.start.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    fn name(&self) -> &str {
        self.start
            .split_once('/')
            .map_or("", |(_, name)| name)
            .trim_end_matches('\0')
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token can be written"))
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &dyn std::fmt::Display| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
            let byte = match error {
                DecodeError::InvalidByte(byte, _) => byte,
                _ => text.len(),
            };
            refuse(&format!("illegal base64 data at input byte {byte}"))
        })?;
        let token = decode::json(&bytes, &Limits::default()).map_err(|error| refuse(&error))?;
        let token: Self = serde_json::from_value(token.value).map_err(|error| refuse(&error))?;
        if token.v != TOKEN_VERSION || token.rv == 0 || !token.start.contains('/') {
            return Err(refuse(&format!(
                "server does not recognize this encoded version {:?}",
                token.v
            )));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_back_to_where_the_page_ended() {
        let key = Key::new(&moorline_store::Resource::new("pods"), "n", "a.b-c");
        let token = Token::decode(&Token::after(&key, Revision::new(42)).encode()).unwrap();
        assert_eq!((token.rv, token.namespace(), token.name()), (42, "n", "a.b-c"));
        assert_eq!(Token::decode(&Token::inconsistent(&key).encode()).unwrap().rv, -1);
        for bad in [
            "",
            "nonsense!",
            "e30",
            &URL_SAFE_NO_PAD.encode(r#"{"v":"v9","rv":1,"start":"a/b"}"#),
        ] {
            assert!(Token::decode(bad).is_err(), "{bad}");
        }
    }
}
