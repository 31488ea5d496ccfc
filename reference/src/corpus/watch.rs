//! Watches: from a revision, from now, from the beginning of time; with selectors, bookmarks and tables.

use fastrand::Rng;
use serde_json::json;

use super::{Place, pick};
use crate::step::Step;

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    let all = place.collection("/apis/coordination.k8s.io/v1", "leases");
    let lease = |name: &str, color: &str| json!({"metadata": {"name": name, "labels": {"color": color}}});
    let mut steps = vec![
        Step::post(&all, &lease("first", "red")).keep("start", "/metadata/resourceVersion"),
        Step::post(&all, &lease("second", "blue")),
    ];
    for _ in 0..8 {
        let name = *pick(rng, &["first", "second", "third"]);
        steps.push(match rng.u8(0..4) {
            0 => Step::post(&all, &lease(name, pick::<&str>(rng, &["red", "blue"]))),
            1 => Step::delete(format!("{all}/{name}")),
            _ => Step::patch(
                format!("{all}/{name}"),
                "merge",
                &json!({"metadata": {"labels": {"color": pick(rng, &["red", "blue"])}}}),
            ),
        });
    }
    let watch = |query: &str| Step::get(format!("{all}?watch=true&timeoutSeconds=1{query}"));
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let all_watches = [
        watch("&resourceVersion={start}"),
        watch("&resourceVersion={start}&labelSelector=color%3Dred"),
        watch("&resourceVersion={start}&fieldSelector=metadata.name%3Dfirst"),
        watch("&resourceVersion=0"),
        watch(""),
        watch("&resourceVersion={start}").header("accept", table),
        watch("&resourceVersion={start}").header("accept", partial),
        watch("&resourceVersion={start}&labelSelector=color%3Dred").header("accept", partial),
        watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"),
        watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
            .header("accept", table),
        watch(
            "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=color%3Dblue",
        ),
    ];
    let mut order: Vec<Step> = all_watches.into();
    rng.shuffle(&mut order);
    steps.extend(order.into_iter().take(5));
    for query in [
        "&sendInitialEvents=true",
        "&sendInitialEvents=true&resourceVersionMatch=Exact",
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "&resourceVersionMatch=NotOlderThan",
        "&resourceVersion=nonsense",
        "&resourceVersion=99999999999",
        "&labelSelector=a%3D%3D%3D",
        "&fieldSelector=no.such%3Dfield",
    ] {
        if rng.u8(0..3) > 0 {
            steps.push(watch(query));
        }
    }
    steps.push(watch("&resourceVersion={start}").header("accept", "text/html"));
    steps.push(Step::get(format!(
        "/apis/coordination.k8s.io/v1/watch/namespaces/{}/leases?timeoutSeconds=1&resourceVersion={{start}}",
        place.namespace
    )));
    steps.push(Step::get(format!(
        "/apis/coordination.k8s.io/v1/watch/namespaces/{}/leases/first?timeoutSeconds=1&resourceVersion={{start}}",
        place.namespace
    )));
    steps
}
