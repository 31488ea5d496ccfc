//! A server's own life: it starts, keeps what it was told, and stops cleanly.

use crate::harness::{Server, Storage};

#[test]
fn a_server_answers_as_soon_as_its_kubeconfig_is_there() {
    let server = Server::start(Storage::Memory);
    assert!(server.ok("get ns -o name").contains("namespace/default\n"));
}

#[test]
fn a_server_that_is_told_to_stop_exits_zero() {
    let mut server = Server::start(Storage::Memory);
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn a_watch_ends_cleanly_when_the_server_stops() {
    let mut server = Server::start(Storage::Memory);
    let mut watch = server.start_kubectl("get ns --watch");
    watch.line_with("default");
    assert_eq!(server.terminate().code(), Some(0));
    assert!(watch.ended().success());
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let server = Server::start(Storage::Disk);
    server.ok("create configmap a --from-literal=x=1");
    server.ok("create namespace kept");
    server.ok("-n kept create deployment web --image=nginx");
    server.run("create -f -", include_str!("gadgets.yaml")).succeeded();
    server.ok("wait --for=condition=Established crd/gadgets.kept.example.com");
    let before = server.ok("get cm a -o yaml");
    let server = server.restarted();
    assert_eq!(server.ok("get cm a -o yaml"), before);
    assert_eq!(server.ok("-n kept get deploy -o name"), "deployment.apps/web\n");
    assert_eq!(server.ok("get gadgets"), "");
}

#[test]
fn tokens_and_certificates_outlive_a_restart() {
    let server = Server::start(Storage::Disk);
    let authority = "config view --raw -o jsonpath={.clusters[0].cluster.certificate-authority-data}";
    let before = server.ok(authority);
    let server = server.restarted();
    assert_eq!(server.ok(authority), before);
}

#[test]
fn two_servers_on_one_directory_are_not_possible() {
    let server = Server::start(Storage::Disk);
    let second = server.second_on_the_same_directory();
    assert!(!second.status.success());
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert!(complaint.starts_with("error: "), "{complaint}");
    server.ok("get ns");
}
