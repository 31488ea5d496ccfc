//! Lists: selectors, pages, revisions, and deleting what a selector finds.

use fastrand::Rng;
use http::Method;
use serde_json::json;

use super::{Place, pick};
use crate::step::{Step, Until};

const LABEL_SELECTORS: [&str; 22] = [
    "color=red",
    "color==red",
    "color!=red",
    "color%20in%20(red,blue)",
    "color%20notin%20(red)",
    "color",
    "!color",
    "size%3E2",
    "size%3C3",
    "size%3Ea",
    "color=red,size=1",
    "color%20in%20()",
    "color%20in%20(red",
    "=red",
    "color=red=blue",
    "color=",
    "a/b/c=d",
    "-color=red",
    "color=re!d",
    "%20",
    ",",
    "color%20near%20red",
];

const FIELD_SELECTORS: [&str; 9] = [
    "metadata.name=s1",
    "metadata.name!=s1",
    "metadata.name=s1,metadata.namespace=none",
    "type=Opaque",
    "type!=Opaque",
    "data=x",
    "metadata.name",
    "metadata.name==s2",
    "metadata.name%3Es2",
];

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let all = place.collection("/api/v1", "secrets");
    let mut steps = Vec::new();
    for number in 0..7 {
        let mut object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("s{number}"),
            "labels": {"size": number.to_string()}}, "stringData": {"a": "b"}});
        if rng.bool() {
            object["metadata"]["labels"]["color"] = json!(pick(rng, &["red", "blue", "green"]));
        }
        steps.push(Step::post(&all, &object));
    }
    steps.push(Step::get(&all).keep("at", "/metadata/resourceVersion"));
    for _ in 0..8 {
        steps.push(Step::get(format!(
            "{all}?labelSelector={}",
            pick(rng, &LABEL_SELECTORS)
        )));
        steps.push(Step::get(format!(
            "{all}?fieldSelector={}",
            pick(rng, &FIELD_SELECTORS)
        )));
    }
    let limit = rng.u8(1..5);
    steps.push(Step::get(format!("{all}?limit={limit}")).keep("more", "/metadata/continue"));
    steps.push(Step::delete(format!("{all}/s6")));
    let labels = json!({"metadata": {"labels": {"changed": "yes"}}});
    steps.push(Step::patch(format!("{all}/s5"), "merge", &labels));
    steps.push(Step::get(format!("{all}?limit={limit}&continue={{more}}")).keep("rest", "/metadata/continue"));
    steps.push(Step::get(format!("{all}?limit=1&labelSelector=size")).keep("more", "/metadata/continue"));
    steps.push(Step::get(format!(
        "{all}?limit=500&labelSelector=size&continue={{more}}"
    )));
    steps.push(Step::get(format!("{all}?limit={limit}&continue=nonsense")));
    for query in [
        "resourceVersion=0",
        "resourceVersion={at}",
        "resourceVersion={at}&resourceVersionMatch=Exact",
        "resourceVersion={at}&resourceVersionMatch=NotOlderThan",
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion={at}&resourceVersionMatch=Nonsense",
        "resourceVersion=nonsense",
        "resourceVersion=-1",
        "limit=-1",
        "limit=x",
        "limit=0",
        "watch=nonsense&timeoutSeconds=1",
        "timeoutSeconds=x",
        "sendInitialEvents=true",
        "pretty=1&limit=1",
        "allowWatchBookmarks=true",
    ] {
        steps.push(Step::get(format!("{all}?{query}")));
    }
    let everywhere = "/api/v1/secrets?fieldSelector=metadata.namespace%3D";
    steps.push(Step::get(format!("{everywhere}{}", place.namespace)));
    steps.push(Step::get("/api/v1/namespaces/no-such-namespace/secrets"));
    steps.push(Step::post(
        "/api/v1/namespaces/no-such-namespace/secrets",
        &json!({"metadata": {"name": "x"}}),
    ));
    steps.push(Step::of(
        Method::DELETE,
        format!("{all}?labelSelector=color=red&dryRun=All"),
    ));
    steps.push(Step::of(Method::DELETE, format!("{all}?labelSelector=color=red")));
    steps.push(Step::of(
        Method::DELETE,
        format!("{all}?fieldSelector=metadata.name=s1"),
    ));
    steps.push(Step::get(&all));
    let generated = json!({"metadata": {"generateName": "gen-"}, "type": "example.com/any"});
    steps.push(Step::post(&all, &generated).keep("name", "/metadata/name"));
    steps.push(Step::get(format!("{all}/{{name}}")));
    steps.push(Step::post(&all, &json!({"metadata": {}})));
    steps.push(Step::of(Method::DELETE, all).until(Until::Answered));
    steps
}
