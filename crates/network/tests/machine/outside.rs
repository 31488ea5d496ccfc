//! An instance and the world: on a machine of the test's own, which is a network namespace with one way out.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use moorline_network::{Outside, Protocol, ServicePort, ServiceRules};
use nix::sched::{CloneFlags, setns, unshare};

use crate::harness::{Instance, ask_from_machine, machine_reaches, missing, output, say_over_tcp};

const MACHINE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const WORLD: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// A namespace that is all there is outside of the machine. Removed at the end.
struct World {
    name: String,
}

impl World {
    /// Makes the calling thread's namespace a new machine, and a world around it.
    fn around_this_thread(name: &str) -> Self {
        let name = format!("{name}{}", std::process::id());
        output("ip", &["netns", "add", &name]);
        let world = Self { name };
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let (name, link) = (&world.name, world.link());
        for command in [
            "link set lo up".to_owned(),
            format!("link add {link} type veth peer name world netns {name}"),
            format!("addr add {MACHINE}/24 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} addr add {WORLD}/24 dev world"),
            format!("-n {name} link set world up"),
            format!("-n {name} route add default via {MACHINE}"),
            format!("route add default via {WORLD}"),
        ] {
            output("ip", &command.split(' ').collect::<Vec<_>>());
        }
        world
    }

    /// The machine's link to it.
    fn link(&self) -> String {
        format!("up{}", self.name)
    }

    fn forwarding(&self) -> String {
        let path = format!("/proc/sys/net/ipv4/conf/{}/forwarding", self.link());
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            worker.join().unwrap()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        output("ip", &["netns", "del", &self.name]);
    }
}

fn on_a_machine_of_its_own(test: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(test).join().unwrap());
}

#[test]
fn an_open_instance_reaches_the_world_and_is_reached_at_its_node_ports_until_it_is_purged() {
    if let Some(reason) = missing() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    on_a_machine_of_its_own(|| {
        let world = World::around_this_thread("mlopen");
        assert_eq!(world.forwarding(), "0");
        let mut instance = Instance::with(Outside::Open).unwrap();
        assert_eq!(world.forwarding(), "1");
        assert_eq!(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "0");

        let listener = world.inside(|| TcpListener::bind((WORLD, 80)).unwrap());
        say_over_tcp(listener, "world");
        let endpoint = instance.server("a", "n1");
        let pod = endpoint.address;
        assert_eq!(
            instance.ask_from("a", (WORLD, 80)).unwrap(),
            format!("world hears {MACHINE}")
        );
        let web = ServicePort {
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
            endpoints: vec![endpoint],
        };
        instance
            .set_services(vec![ServiceRules::new("x/web", instance.service_address(1), vec![web])])
            .unwrap();
        let heard = world.inside(|| ask_from_machine((MACHINE, 30080)).unwrap());
        assert_eq!(heard, format!("a hears {WORLD}"));
        assert!(
            !world.inside(|| machine_reaches((pod, 80))),
            "pods are not open to the world"
        );
        assert!(
            !world.inside(|| machine_reaches((instance.service_address(1), 80))),
            "services neither"
        );

        instance.purge();
        assert_eq!(world.forwarding(), "0");
    });
}

#[test]
fn a_closed_instance_neither_reaches_the_world_nor_is_reached() {
    if let Some(reason) = missing() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    on_a_machine_of_its_own(|| {
        let world = World::around_this_thread("mlshut");
        let instance = Instance::new().unwrap();
        assert_eq!(world.forwarding(), "0");
        let listener = world.inside(|| TcpListener::bind((WORLD, 80)).unwrap());
        say_over_tcp(listener, "world");
        assert!(machine_reaches((WORLD, 80)));
        let endpoint = instance.server("a", "n1");
        let pod = endpoint.address;
        assert!(!instance.reaches("a", (WORLD, 80)));
        let web = ServicePort {
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
            endpoints: vec![endpoint],
        };
        instance
            .set_services(vec![ServiceRules::new("x/web", instance.service_address(1), vec![web])])
            .unwrap();
        assert!(machine_reaches((MACHINE, 30080)), "the machine itself does");
        assert!(!world.inside(|| machine_reaches((MACHINE, 30080))));
        assert!(!world.inside(|| machine_reaches((pod, 80))));
        let dns = instance.ranges().dns_address();
        assert!(!world.inside(|| machine_reaches((dns, 53))));
    });
}
