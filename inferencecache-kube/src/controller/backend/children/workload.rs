//! The Deployment of a managed store, then its Service, and what they are live.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde::Serialize;

use super::super::error::ChildError;
use super::super::ownership::{self, Standing};
use super::super::workload::{self, Desired, deployment_adoption, merge_deployment, merge_service, service_adoption};
use super::{ATTEMPTS, Outcome, PAUSE, is_conflict, name_of, namespace_of};
use crate::adapters::AdapterError;
use crate::api::{CacheBackend, names};

const DEPLOYMENT: &str = "Deployment";
const SERVICE: &str = "Service";

/// Applies both and reads what is there. Objects are read as JSON, so that no field is lost that the types do not know.
pub(super) async fn apply(
    client: &Client,
    backend: &CacheBackend,
    desired: Result<&Desired, &AdapterError>,
) -> Result<Outcome, ChildError> {
    let namespace = namespace_of(backend);
    let deployments = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Deployment>(&()));
    let services = Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<Service>(&()));
    let mut failed = None;

    let applied = match desired {
        Err(why) => Err(why.clone().into()),
        Ok(desired) => {
            let problem = |live: &DynamicObject| deployment_adoption(live, &desired.deployment);
            let merge = |live: &DynamicObject| merge_deployment(live, &desired.deployment);
            ensure(&deployments, DEPLOYMENT, backend, &desired.deployment, problem, merge).await
        }
    };
    let live = kept_or_read(&deployments, DEPLOYMENT, backend, applied, &mut failed).await?;
    let Some(live) = live else { return Ok(Outcome { storage: failed, ..Outcome::default() }) };
    let deployment: Deployment = typed(live, DEPLOYMENT)?;

    // Without its Deployment a Service would point at nothing, or at something else.
    let applied = match desired {
        _ if failed.is_some() => None,
        Ok(_) if !workload::can_name_service(name_of(backend)) => {
            Some(Err(ChildError::ServiceName { name: name_of(backend).to_owned() }))
        }
        Ok(desired) => {
            let problem = |live: &DynamicObject| service_adoption(live, &desired.service);
            let merge = |live: &DynamicObject| merge_service(live, &desired.service);
            Some(ensure(&services, SERVICE, backend, &desired.service, problem, merge).await)
        }
        Err(_) => None,
    };
    let live = match applied {
        Some(applied) => kept_or_read(&services, SERVICE, backend, applied, &mut failed).await?,
        None => read(&services, SERVICE, backend).await?,
    };
    let service: Option<Service> = live.map(|live| typed(live, SERVICE)).transpose()?;
    let endpoint = service.as_ref().and_then(workload::endpoint);
    Ok(Outcome { deployment: Some(deployment), endpoint, storage: failed, ..Outcome::default() })
}

/// The object as it was applied, or, where that failed, as it is; only if it is ours.
async fn kept_or_read(
    api: &Api<DynamicObject>,
    kind: &'static str,
    backend: &CacheBackend,
    applied: Result<DynamicObject, ChildError>,
    failed: &mut Option<ChildError>,
) -> Result<Option<DynamicObject>, ChildError> {
    match applied {
        Ok(live) if ownership::is_ours(&live.metadata, backend) => Ok(Some(live)),
        Ok(_) => {
            failed.get_or_insert(ChildError::Lost { kind, name: name_of(backend).to_owned() });
            Ok(None)
        }
        Err(why) => {
            failed.get_or_insert(why);
            read(api, kind, backend).await
        }
    }
}

async fn read(
    api: &Api<DynamicObject>,
    kind: &'static str,
    backend: &CacheBackend,
) -> Result<Option<DynamicObject>, ChildError> {
    let name = name_of(backend);
    let live = api.get_opt(name).await.map_err(ChildError::api("read", kind, name))?;
    Ok(live.filter(|live| ownership::is_ours(&live.metadata, backend)))
}

/// Creates the object, or changes what differs, or does nothing.
async fn ensure<K: Serialize>(
    api: &Api<DynamicObject>,
    kind: &'static str,
    backend: &CacheBackend,
    desired: &K,
    problem: impl Fn(&DynamicObject) -> Option<&'static str>,
    merge: impl Fn(&DynamicObject) -> Option<DynamicObject>,
) -> Result<DynamicObject, ChildError> {
    let name = name_of(backend);
    let by = PostParams { field_manager: Some(names::CONTROLLER.to_owned()), ..PostParams::default() };
    let mut attempt = 1;
    loop {
        let live = api.get_opt(name).await.map_err(ChildError::api("read", kind, name))?;
        let (action, answer) = match live {
            None => ("create", api.create(&by, &untyped(desired, kind)?).await),
            Some(live) => {
                let taken = |owner| ChildError::Foreign { kind, name: name.to_owned(), owner };
                match ownership::standing(&live.metadata, backend) {
                    Standing::Foreign(owner) => return Err(taken(owner)),
                    Standing::Unowned => {
                        if let Some(problem) = problem(&live) {
                            return Err(ChildError::Occupied { kind, name: name.to_owned(), problem });
                        }
                    }
                    Standing::Ours => {}
                }
                let Some(changed) = merge(&live) else { return Ok(live) };
                ("update", api.replace(name, &by, &changed).await)
            }
        };
        match answer {
            Err(why) if is_conflict(&why) && attempt < ATTEMPTS => tokio::time::sleep(PAUSE).await,
            answer => return answer.map_err(ChildError::api(action, kind, name)),
        }
        attempt += 1;
    }
}

fn untyped<K: Serialize>(object: &K, kind: &'static str) -> Result<DynamicObject, ChildError> {
    let object = serde_json::to_value(object).and_then(serde_json::from_value);
    object.map_err(|why| ChildError::api("create", kind, "")(kube::Error::SerdeError(why)))
}

fn typed<K: serde::de::DeserializeOwned>(object: DynamicObject, kind: &'static str) -> Result<K, ChildError> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let object = serde_json::to_value(object).and_then(serde_json::from_value);
    object.map_err(|why| ChildError::api("read", kind, &name)(kube::Error::SerdeError(why)))
}
