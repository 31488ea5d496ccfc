//! What is served, for clients that ask before they act: the plain lists, and the aggregated ones that say it all at
//! once.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use moorline_machinery::{
    gvk::{GroupVersion, GroupVersionKind},
    status::ApiError,
};
use serde_json::{Map, Value, json};

use crate::{
    body::Body,
    digest::{self, Tagged},
    negotiate,
    path::Verb,
    resource::{ResourceType, Served},
    respond,
};

/// Answers a path at or below `/api` and `/apis` that names no resource.
pub(crate) fn handle(served: &Served, path: &str, headers: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let plain = match segments[..] {
        ["api"] if prefers_aggregated(headers) => return Ok(aggregated(served, Root::Core, headers)),
        ["api"] => Some(api_versions(headers)),
        ["apis"] if prefers_aggregated(headers) => return Ok(aggregated(served, Root::Groups, headers)),
        ["apis"] => Some(group_list(served)),
        ["apis", group] => groups(served)
            .into_iter()
            .find(|(name, _)| *name == group)
            .map(|(group, versions)| {
                let mut described = api_group(group, &versions);
                described["kind"] = "APIGroup".into();
                described["apiVersion"] = "v1".into();
                described
            }),
        ["api", version] => resource_list(served, &GroupVersion::new("", version)),
        ["apis", group, version] if !group.is_empty() => resource_list(served, &GroupVersion::new(group, version)),
        _ => None,
    };
    let Some(plain) = plain else {
        if let ["api", _] = segments[..] {
            return Err(ApiError::path_not_found());
        }
        return Ok(respond::text(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    Ok(respond::value(
        StatusCode::OK,
        &plain,
        negotiate::answer(headers, false)?.encoding,
    ))
}

/// The groups that come first, in the order in which Kubernetes prefers them when a name is ambiguous. Custom groups
/// follow by name.
const PREFERRED: [&str; 23] = [
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
];

/// Every group with its versions, both in order of preference. The core group is the one without a name.
fn groups(served: &Served) -> Vec<(&str, Vec<GroupVersion>)> {
    let mut groups: Vec<_> = served.groups().collect();
    groups.sort_by_key(|(group, _)| {
        (
            PREFERRED
                .iter()
                .position(|preferred| preferred == group)
                .unwrap_or(PREFERRED.len()),
            *group,
        )
    });
    groups
}

fn api_versions(headers: &HeaderMap) -> Value {
    let address = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

fn group_list(served: &Served) -> Value {
    let groups: Vec<Value> = groups(served)
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| api_group(group, &versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn api_group(group: &str, versions: &[GroupVersion]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": version.to_string(), "version": &*version.version}))
        .collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

fn resource_list(served: &Served, version: &GroupVersion) -> Option<Value> {
    let mut listed = Vec::new();
    for resource in served.resources(version)? {
        listed.push(api_resource(resource));
        listed.extend(resource.subresources.iter().map(|subresource| {
            let mut described = json!({
                "name": format!("{}/{}", resource.gvr.resource, subresource.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": &*subresource.gvk.kind,
                "verbs": verbs(resource, &subresource.verbs),
            });
            if !same_version(&subresource.gvk, version) {
                described["group"] = (&*subresource.gvk.group).into();
                described["version"] = (&*subresource.gvk.version).into();
            }
            described
        }));
    }
    if is_built_in(&version.group) {
        listed.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": version.to_string(), "resources": listed});
    // The list of the core group is older than versions of lists.
    if !version.group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn api_resource(resource: &ResourceType) -> Value {
    let mut described = json!({
        "name": &*resource.gvr.resource,
        "singularName": &*resource.singular,
        "namespaced": resource.namespaced,
        "kind": &*resource.gvk.kind,
        "verbs": verbs_of(resource),
    });
    add_names(&mut described, resource);
    let own = GroupVersion::new(resource.gvr.group.clone(), resource.gvr.version.clone());
    if !same_version(&resource.gvk, &own) {
        described["group"] = (&*resource.gvk.group).into();
        described["version"] = (&*resource.gvk.version).into();
    }
    described
}

fn add_names(described: &mut Value, resource: &ResourceType) {
    let texts = |texts: &[std::sync::Arc<str>]| texts.iter().map(|text| Value::from(&**text)).collect::<Vec<_>>();
    if !resource.short_names.is_empty() {
        described["shortNames"] = texts(&resource.short_names).into();
    }
    if !resource.categories.is_empty() {
        described["categories"] = texts(&resource.categories).into();
    }
}

/// What can be done with objects of a resource. Those of a kind that goes can only go.
fn verbs_of(resource: &ResourceType) -> Vec<&'static str> {
    let closing = resource.strategy.creation_refused().is_some();
    let mut names = verbs(resource, &resource.verbs);
    names.retain(|name| !closing || !matches!(*name, "create" | "patch" | "update"));
    names
}

fn verbs(resource: &ResourceType, verbs: &[Verb]) -> Vec<&'static str> {
    let mut names: Vec<_> = verbs.iter().map(|verb| verb.as_str()).collect();
    if !is_custom(resource) {
        names.sort_unstable();
    }
    names
}

fn same_version(gvk: &GroupVersionKind, version: &GroupVersion) -> bool {
    gvk.group == version.group && gvk.version == version.version
}

/// Which half of the API an aggregated document describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    Core,
    Groups,
}

/// Whether the client prefers the aggregated document over the plain one.
fn prefers_aggregated(headers: &HeaderMap) -> bool {
    let preferred = negotiate::choices(headers).iter().find_map(|choice| {
        if !matches!(
            choice.media_type,
            "application/json" | "application/*" | "*/*" | "application/yaml"
        ) {
            return None;
        }
        match (choice.parameter("as"), choice.parameter("g"), choice.parameter("v")) {
            (None, ..) => Some(false),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => Some(true),
            _ => None,
        }
    });
    preferred == Some(true)
}

fn aggregated(served: &Served, root: Root, headers: &HeaderMap) -> Response<Body> {
    let items: Vec<Value> = groups(served)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == (root == Root::Core))
        .map(|(group, versions)| aggregated_group(served, group, &versions))
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let document = Tagged::json(&list);
    let content_type = HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let mut response = digest::answer(&document, content_type, headers);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

fn aggregated_group(served: &Served, group: &str, versions: &[GroupVersion]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            let resources = served.resources(version).into_iter().flatten();
            let resources: Vec<Value> = resources
                .map(|resource| aggregated_resource(resource, version))
                .collect();
            json!({"version": &*version.version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = Map::new();
    if !group.is_empty() {
        metadata.insert("name".to_owned(), group.into());
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &ResourceType, version: &GroupVersion) -> Value {
    let response_kind = |gvk: &GroupVersionKind| {
        let (group, version) = if is_custom(resource) || !same_version(gvk, version) {
            (&*gvk.group, &*gvk.version)
        } else {
            ("", "")
        };
        json!({"group": group, "version": version, "kind": &*gvk.kind})
    };
    let mut described = json!({
        "resource": &*resource.gvr.resource,
        "responseKind": response_kind(&resource.gvk),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*resource.singular,
        "verbs": verbs_of(resource),
    });
    add_names(&mut described, resource);
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|subresource| {
            json!({
                "subresource": &*subresource.name,
                "responseKind": response_kind(&subresource.gvk),
                "verbs": verbs(resource, &subresource.verbs),
            })
        })
        .collect();
    if !subresources.is_empty() {
        described["subresources"] = subresources.into();
    }
    described
}

/// Custom resources are described a little more fully than built-in ones, which leave out what their group implies.
fn is_custom(resource: &ResourceType) -> bool {
    !is_built_in(&resource.gvr.group)
}

/// Whether a group is one of Kubernetes' own.
pub(crate) fn is_built_in(group: &str) -> bool {
    PREFERRED.contains(&group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::fixtures;

    const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    fn get(path: &str, headers: &[(header::HeaderName, &str)]) -> Response<Body> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect();
        handle(&fixtures::registry().served(), path, &headers).unwrap()
    }

    fn content(response: &Response<Body>) -> Value {
        serde_json::from_slice(response.body().as_whole().unwrap()).unwrap()
    }

    fn names<'v>(list: &'v Value, key: &str) -> Vec<&'v str> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|item| item[key].as_str().unwrap())
            .collect()
    }

    #[test]
    fn groups_come_in_the_order_of_preference_and_custom_ones_last() {
        let list = content(&get("/apis", &[]));
        assert_eq!(
            names(&list["groups"], "name"),
            [
                "apps",
                "events.k8s.io",
                "authorization.k8s.io",
                "autoscaling",
                "apiextensions.k8s.io",
                "acme.example.com",
                "db.example.com",
            ]
        );
    }

    #[test]
    fn the_newest_stable_version_of_a_group_is_preferred() {
        let group = content(&get("/apis/autoscaling", &[]));
        assert_eq!(group["kind"], "APIGroup");
        assert_eq!(
            group["preferredVersion"],
            json!({"groupVersion": "autoscaling/v2", "version": "v2"})
        );
        assert_eq!(names(&group["versions"], "version"), ["v2", "v1"]);
        let group = content(&get("/apis/db.example.com", &[]));
        assert_eq!(names(&group["versions"], "version"), ["v1", "v1beta1"]);
    }

    #[test]
    fn the_core_group_has_its_own_root() {
        let versions = content(&get("/api", &[(header::HOST, "127.0.0.1:6443")]));
        assert_eq!(versions["kind"], "APIVersions");
        assert_eq!(versions["versions"], json!(["v1"]));
        assert_eq!(
            versions["serverAddressByClientCIDRs"][0]["serverAddress"],
            "127.0.0.1:6443"
        );
    }

    #[test]
    fn a_part_is_listed_with_its_resource_and_with_the_version_of_its_kind_where_that_is_another() {
        let list = content(&get("/apis/apps/v1", &[]));
        assert_eq!(list["groupVersion"], "apps/v1");
        assert_eq!(
            names(&list["resources"], "name"),
            ["deployments", "deployments/scale", "deployments/status"]
        );
        assert_eq!(
            list["resources"][1],
            json!({
                "name": "deployments/scale", "singularName": "", "namespaced": true, "kind": "Scale",
                "group": "autoscaling", "version": "v1", "verbs": ["get", "patch", "update"],
            })
        );
        assert_eq!(list["resources"][2].get("group"), None);
    }

    #[test]
    fn a_resource_is_listed_with_everything_that_kubectl_calls_it() {
        let list = content(&get("/api/v1", &[]));
        let pods = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|resource| resource["name"] == "pods")
            .unwrap();
        assert_eq!(
            *pods,
            json!({
                "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
                "shortNames": ["po"], "categories": ["all"],
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            })
        );
    }

    #[test]
    fn what_is_not_served_is_a_page_that_is_not_there() {
        for path in ["/apis/no.such.group", "/apis/no.such.group/v1", "/apis/apps/v2"] {
            let response = get(path, &[]);
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            assert_eq!(response.body().as_whole(), Some(&b"404 page not found\n"[..]));
        }
    }

    #[test]
    fn one_who_prefers_it_gets_everything_at_once() {
        let kubectl = format!("{V2},{},application/json", V2.replace("v=v2", "v=v2beta1"));
        let response = get("/apis", &[(header::ACCEPT, &kubectl)]);
        assert_eq!(response.headers()[header::CONTENT_TYPE], V2);
        let list = content(&response);
        assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
        let apps = &list["items"][0];
        assert_eq!(apps["metadata"]["name"], "apps");
        assert_eq!(
            apps["versions"][0]["resources"][0],
            json!({
                "resource": "deployments", "singularResource": "deployment", "scope": "Namespaced",
                "responseKind": {"group": "", "version": "", "kind": "Deployment"},
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
                "subresources": [
                    {
                        "subresource": "scale", "verbs": ["get", "patch", "update"],
                        "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                    },
                    {
                        "subresource": "status", "verbs": ["get", "patch", "update"],
                        "responseKind": {"group": "", "version": "", "kind": "Deployment"},
                    },
                ],
            })
        );
        let core = content(&get("/api", &[(header::ACCEPT, V2)]));
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
        assert_eq!(core["items"][0]["metadata"], json!({}));
    }

    #[test]
    fn a_client_that_knows_only_the_beta_of_the_aggregated_form_gets_the_plain_one() {
        let older = format!("{},application/json", V2.replace("v=v2", "v=v2beta1"));
        for accept in [&older, "application/json, */*"] {
            let response = get("/apis", &[(header::ACCEPT, accept)]);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            assert_eq!(content(&response)["kind"], "APIGroupList");
        }
    }

    #[test]
    fn one_who_has_it_is_not_sent_it_again() {
        let tag = get("/apis", &[(header::ACCEPT, V2)]).headers()[header::ETAG]
            .to_str()
            .unwrap()
            .to_owned();
        let again = get("/apis", &[(header::ACCEPT, V2), (header::IF_NONE_MATCH, &tag)]);
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(again.body().as_whole(), Some(&b""[..]));
    }
}
