//! Resources and subresources that do something else than keep what is written to them.

use http::{Response, StatusCode};
use moorline_machinery::{
    gvk::GroupResource,
    meta,
    status::{ApiError, Status},
};
use moorline_store::{Health, List, Scope};
use serde_json::{Value, json};

use super::{
    Call, WriteOptions,
    delete::{self, DeleteOptions},
    options,
    update::{Changed, change_object},
    write::{self, Managed},
};
use crate::{admission::Operation, auth::review, body::Body, builtin, path::Verb, respond, streams::metrics, wire};

/// Carries out a request that is special; nothing when it is an ordinary one.
pub(crate) async fn handle(call: &Call<'_>) -> Option<Result<Response<Body>, ApiError>> {
    let group = &*call.resource.gvr.group;
    let resource = &*call.resource.gvr.resource;
    match (group, resource, call.path.subresource.as_str(), call.verb) {
        ("authentication.k8s.io" | "authorization.k8s.io", _, "", Verb::Create) => Some(review(call)),
        ("", "serviceaccounts", "token", Verb::Create) => Some(token(call)),
        ("", "pods", "eviction", Verb::Create) => Some(evict(call).await),
        ("", "pods", "binding", Verb::Create) => Some(bind(call, &call.path.name).await),
        ("", "bindings", "", Verb::Create) => Some(bind_by_body(call).await),
        ("", "componentstatuses", ..) => Some(component_statuses(call)),
        (metrics::GROUP, ..) => Some(metrics::answer(call).await),
        _ => None,
    }
}

fn decoded(call: &Call<'_>) -> Result<Value, ApiError> {
    let kind = &call.resource.gvk.kind;
    Ok(options::decode(call.headers, &call.body, kind)?.value)
}

/// A question that is answered and forgotten.
fn review(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let body = decoded(call)?;
    let (core, roles) = (call.core, &call.core.authorizer);
    let recorded = recorded(call, &body)?;
    let mut answer = match &*call.resource.gvk.kind {
        "SelfSubjectAccessReview" => review::self_access_review(body, call.user, roles)?,
        "SubjectAccessReview" => review::access_review(body, roles)?,
        "LocalSubjectAccessReview" => review::local_access_review(body, &call.path.namespace, roles)?,
        "SelfSubjectRulesReview" => review::self_rules_review(&body, call.user, roles)?,
        "SelfSubjectReview" => review::self_review(&body, call.user, core.world.now()),
        "TokenReview" => review::token_review(body, &core.authenticator, core.world.now())?,
        _ => return Err(ApiError::method_not_allowed()),
    };
    answer["apiVersion"] = call.resource.gvk.api_version().into();
    answer["kind"] = (*call.resource.gvk.kind).into();
    if let Some(metadata) = recorded {
        answer["metadata"] = metadata;
    }
    Ok(respond::value(StatusCode::CREATED, &answer, call.answer.encoding))
}

/// The metadata of a question that is handed back with its answer: where it was asked, and who wrote what of it. Those
/// that are answered with an object of their own have none.
fn recorded(call: &Call<'_>, question: &Value) -> Result<Option<Value>, ApiError> {
    if !matches!(
        &*call.resource.gvk.kind,
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" | "TokenReview"
    ) {
        return Ok(None);
    }
    let mut question = question.clone();
    call.resource.conform(&mut question)?;
    if call.resource.namespaced {
        question["metadata"]["namespace"] = call.path.namespace.as_str().into();
    }
    write::own(call, None, &mut question, &WriteOptions::parse(call)?);
    Ok(Some(question["metadata"].take()))
}

fn token(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let body = decoded(call)?;
    let id = call.core.world.uid();
    let asked = review::TokenRequest {
        namespace: &call.path.namespace,
        name: &call.path.name,
        now: call.core.world.now(),
        id: &id,
    };
    let answer = review::token_request(&asked, &body, &call.core.authenticator)?;
    Ok(respond::value(StatusCode::CREATED, &answer, call.answer.encoding))
}

/// Deletes a pod unless a disruption budget objects.
async fn evict(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let body = decoded(call)?;
    let Some(record) = call.core.store.get(&call.key()) else {
        return Err(ApiError::not_found(&call.resource.group_resource(), &call.path.name));
    };
    let pod = wire::from_stored(record.value(), "v1", "Pod");
    let over = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed" | "Pending")
    );
    let mut options = DeleteOptions::from_value(&body["deleteOptions"])?;
    options.dry_run |= call.query.dry_run(&moorline_machinery::gvk::GroupKind::new(
        "meta.k8s.io",
        call.verb.options_kind(),
    ))?;
    if !over && !meta::of(&pod).is_deleting() {
        spend_budget(call, &pod, options.dry_run).await?;
    }
    if !options.dry_run {
        tell_disruption(call).await?;
    }
    delete::delete_object(call, &call.path.name, &options, &mut Vec::new()).await?;
    let mut status = Status::success(None);
    status.code = 201;
    Ok(respond::value(
        StatusCode::CREATED,
        &status.to_value(),
        call.answer.encoding,
    ))
}

/// Says in a pod's conditions that it is being evicted, for those who count failures.
async fn tell_disruption(call: &Call<'_>) -> Result<(), ApiError> {
    loop {
        let Some(record) = call.core.store.get(&call.key()) else {
            return Err(ApiError::not_found(&call.resource.group_resource(), &call.path.name));
        };
        let mut pod = wire::from_stored(record.value(), "v1", "Pod");
        let generation = meta::of(&pod).generation();
        if pod["status"]["conditions"].is_null() {
            pod["status"]["conditions"] = json!([]);
        }
        let Some(conditions) = pod["status"]["conditions"].as_array_mut() else {
            return Ok(());
        };
        if conditions
            .iter()
            .any(|told| told["type"] == "DisruptionTarget" && told["status"] == "True")
        {
            return Ok(());
        }
        conditions.retain(|told| told["type"] != "DisruptionTarget");
        conditions.push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "observedGeneration": generation, "lastProbeTime": null,
            "lastTransitionTime": moorline_machinery::time::format(call.core.world.now()),
        }));
        let told = wire::to_stored(&pod);
        match call
            .core
            .store
            .update(record.key().clone(), told, record.mod_revision())
            .await
        {
            // Somebody else wrote first; what they wrote is looked at.
            Err(moorline_store::WriteError::Conflict { .. }) => {}
            written => {
                return written
                    .map(|_| ())
                    .map_err(|error| ApiError::internal(error.to_string()));
            }
        }
    }
}

/// Takes one disruption from the budget that covers a pod, if one does and has one left.
async fn spend_budget(call: &Call<'_>, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
    use moorline_machinery::selector::LabelSelector;
    let storage = builtin::storage("policy", "poddisruptionbudgets");
    let page = call
        .core
        .store
        .list(&List::all(Scope::namespace(&storage, call.path.namespace.as_str())));
    let records = page.map(|page| page.records).unwrap_or_default();
    let labels = meta::of(pod).labels();
    let covering: Vec<_> = records
        .iter()
        .filter(|record| {
            let budget = wire::from_stored(record.value(), "policy/v1", "PodDisruptionBudget");
            let selector = LabelSelector::from_json(budget["spec"].get("selector"));
            selector.is_ok_and(|selector| selector.matches(&labels))
        })
        .collect();
    if covering.len() > 1 {
        return Err(ApiError::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let Some(record) = covering.first() else { return Ok(()) };
    let mut budget = wire::from_stored(record.value(), "policy/v1", "PodDisruptionBudget");
    let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
    let name = record.key().name();
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions
        .into_iter()
        .any(|told| told["type"] == "Ready" && told["status"] == "True");
    let number = |name: &str| budget["status"][name].as_i64().unwrap_or(0);
    let is_kept = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    if !is_ready && (is_kept || budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow") {
        // It was not counted on anyway.
        return Ok(());
    }
    if budget["status"]["observedGeneration"].as_i64().unwrap_or(0) < meta::of(&budget).generation() {
        return Err(ApiError::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            10,
        )
        .with_cause(
            "DisruptionBudget",
            format!("The disruption budget {name} is still being processed by the server."),
            "",
        ));
    }
    if allowed <= 0 {
        let status = &budget["status"];
        let number = |name: &str| status[name].as_i64().unwrap_or(0);
        let message = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        );
        return Err(ApiError::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            0,
        )
        .with_cause("DisruptionBudget", message, ""));
    }
    if dry_run {
        return Ok(());
    }
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    budget["status"]["disruptedPods"][call.path.name.as_str()] =
        moorline_machinery::time::format(call.core.world.now()).into();
    let written = call
        .core
        .store
        .update(record.key().clone(), wire::to_stored(&budget), record.mod_revision())
        .await;
    written
        .map(|_| ())
        .map_err(|_| ApiError::too_many_requests("the disruption budget is being changed, try again", 1))
}

/// Puts a pod on a node, once.
async fn bind(call: &Call<'_>, pod: &str) -> Result<Response<Body>, ApiError> {
    let binding = decoded(call)?;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let options = WriteOptions::parse(call)?;
    let resource = call
        .core
        .registry
        .find(&moorline_machinery::gvk::GroupVersionResource::new("", "v1", "pods"));
    let resource = resource.ok_or_else(ApiError::path_not_found)?;
    let path = crate::path::ResourcePath {
        name: pod.to_owned(),
        subresource: String::new(),
        ..call.path.clone()
    };
    let single = Call {
        path: &path,
        resource,
        body: call.body.clone(),
        ..*call
    };
    let now = moorline_machinery::time::format(call.core.world.now());
    let change = |old: &Value| {
        let there = old["spec"]["nodeName"].as_str().unwrap_or_default();
        if !there.is_empty() {
            let why = format!("pod {pod} is already assigned to node {there:?}");
            return Err(ApiError::conflict(&GroupResource::from("pods/binding"), pod, why));
        }
        if meta::of(old).is_deleting() {
            let why = format!("pod {pod} is being deleted, cannot be assigned to a host");
            return Err(ApiError::conflict(&GroupResource::from("pods/binding"), pod, why));
        }
        let mut object = old.clone();
        object["spec"]["nodeName"] = node.as_str().into();
        let annotations = binding["metadata"]["annotations"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        for (name, value) in annotations {
            object["metadata"]["annotations"][name] = value;
        }
        let scheduled = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
        });
        let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(scheduled);
        object["status"]["conditions"] = conditions.into();
        // A binding is not recorded: what it sets is nobody's.
        Ok(Changed {
            object,
            managed: Managed::Already,
        })
    };
    change_object(&single, &options, Operation::Bind, &mut Vec::new(), change).await?;
    let mut status = Status::success(None);
    status.code = 201;
    Ok(respond::value(
        StatusCode::CREATED,
        &status.to_value(),
        call.answer.encoding,
    ))
}

async fn bind_by_body(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let name = meta::of(&decoded(call)?).name().to_owned();
    bind(call, &name).await
}

/// How the parts of the control plane are, which nobody should ask for years and some still do. All are in this process:
/// it controls for as long as it answers, and who has pods run also schedules them.
fn component_statuses(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let scheduler = call.core.streams.access().map(|_| ());
    let scheduler = scheduler.map_err(|_| "nobody runs pods for this server");
    let store = match call.core.store.health() {
        Health::Ready => Ok(()),
        Health::Refusing(_) => Err("the store refuses writes"),
    };
    let parts = [
        ("scheduler", scheduler),
        ("controller-manager", Ok(())),
        ("etcd-0", store),
    ];
    let mut items = parts.map(|(name, health)| {
        let (status, message) = health.map_or_else(|message| ("False", message), |()| ("True", "ok"));
        json!({ "metadata": { "name": name },
            "conditions": [{ "type": "Healthy", "status": status, "message": message }] })
    });
    let name = call.path.name.as_str();
    if name.is_empty() {
        let list =
            json!({ "kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items.as_slice() });
        return Ok(call.answer_object(StatusCode::OK, list));
    }
    let found = items.iter_mut().find(|item| item["metadata"]["name"] == name);
    let found = found.ok_or_else(|| ApiError::not_found(&GroupResource::new("", "componentstatuses"), name))?;
    found["kind"] = "ComponentStatus".into();
    found["apiVersion"] = "v1".into();
    Ok(call.answer_object(StatusCode::OK, found.take()))
}
