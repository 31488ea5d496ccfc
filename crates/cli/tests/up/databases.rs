//! Real databases in pods, of three makes, two of each, on the same port of different addresses.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::instance::{Instance, wait_until};

/// What a pod gets to end in; a database that ends cleanly needs a small part of it.
const GRACE: Duration = Duration::from_mins(1);

struct Database {
    name: &'static str,
    image: &'static str,
    port: u16,
    environment: &'static [(&'static str, &'static str)],
    data: &'static str,
    memory: &'static str,
    is_ready: &'static str,
    /// Shell in which `HOST` stands for the server that is asked.
    write: &'static str,
    read: &'static str,
    /// Takes more memory than the pod has.
    devour: &'static str,
    /// What the log ends with when the database ended by itself.
    farewell: &'static str,
    /// What the log says when the database outlives the process that took too much.
    survives: Option<&'static str>,
}

const DATABASES: [Database; 3] = [
    Database {
        name: "postgres",
        image: "postgres:17",
        port: 5432,
        environment: &[
            ("POSTGRES_PASSWORD", "secret"),
            ("PGPASSWORD", "secret"),
            ("PGDATA", "/data/pg"),
        ],
        data: "/data",
        memory: "256Mi",
        is_ready: "pg_isready -q -h 127.0.0.1 -U postgres",
        write: "psql -q -h HOST -U postgres -c 'create table t(v text)' -c \"insert into t values('kept')\"",
        read: "psql -tA -h HOST -U postgres -c 'select v from t'",
        devour: "psql -h HOST -U postgres -c \"select array_agg(repeat('x', 1000) || n) from generate_series(1, 1000000) n\"",
        farewell: "database system is shut down",
        survives: Some("was terminated by signal 9"),
    },
    Database {
        name: "valkey",
        image: "valkey/valkey:8",
        port: 6379,
        environment: &[],
        data: "/data",
        memory: "64Mi",
        is_ready: "valkey-cli ping | grep -q PONG",
        write: "valkey-cli -h HOST set v kept",
        read: "valkey-cli -h HOST get v",
        devour: "valkey-cli -h HOST eval \"for i = 1, 100000 do redis.call('set', i, string.rep('x', 100000)) end\" 0",
        farewell: "bye bye",
        survives: None,
    },
    Database {
        name: "mariadb",
        image: "mariadb:11.8",
        port: 3306,
        environment: &[("MARIADB_ROOT_PASSWORD", "secret"), ("MYSQL_PWD", "secret")],
        data: "/var/lib/mysql",
        memory: "512Mi",
        is_ready: "mariadb-admin -h 127.0.0.1 -u root --silent ping",
        write: "mariadb -h HOST -u root -e \"create database d; create table d.t(v text); insert into d.t values('kept')\"",
        read: "mariadb -h HOST -u root -NB -e 'select v from d.t'",
        devour: "mariadb -h HOST -u root d -e \"set max_heap_table_size = 4000000000; create table m(a char(255)) engine = memory; \
                 insert into m select repeat('x', 255) from seq_1_to_10000000\"",
        farewell: "Shutdown complete",
        survives: None,
    },
];

#[test]
fn databases_talk_keep_their_data_and_come_back() {
    if Command::new("mmdebstrap").arg("--version").output().is_err() {
        eprintln!("SKIPPED: mmdebstrap is missing, which makes the images (apt-get install mmdebstrap)");
        return;
    }
    let Some(instance) = Instance::new() else { return };
    let mut build = vec!["image", "build"];
    build.extend(DATABASES.iter().map(|database| database.image));
    let done = instance.moorline(&build);
    if !done.status.success() {
        // Whether recipes can be built is what the tests of recipes are for; this machine may reach no packages.
        let why = String::from_utf8_lossy(&done.stderr).into_owned();
        eprintln!("SKIPPED: the images cannot be built here: {why}");
        return;
    }
    instance.ok(&["up", "--detach", "--nodes", "2"]);
    for database in &DATABASES {
        let (first, second) = (database.pod(0), database.pod(1));
        let objects = [database.service(), database.claim(0), database.claim(1), first, second];
        apply(
            &instance,
            &json!({ "apiVersion": "v1", "kind": "List", "items": objects }),
        );
    }
    for database in &DATABASES {
        database.wait_until_ready(&instance, 0);
        database.wait_until_ready(&instance, 1);
        database.answers_its_twin_by_name(&instance);
    }

    let before = lives(&instance);
    let process = rustix::process::Pid::from_raw(instance.process()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    wait_until("another moorline", || {
        instance.ok(&["up", "--detach", "--nodes", "2"]).starts_with("up: ")
    });
    for database in &DATABASES {
        database.has_kept(&instance);
    }
    assert_eq!(lives(&instance), before, "the same pods, none of them started again");

    for database in &DATABASES {
        database.ends_cleanly_and_comes_back(&instance);
        database.comes_back_from_its_memory_limit(&instance);
    }
}

/// Which pods there are, and how often their containers were started.
fn lives(instance: &Instance) -> Vec<(Value, Value)> {
    let pods = instance.get(&["pods", "--sort-by=metadata.name"]);
    let life = |pod: &Value| {
        let starts = &pod["status"]["containerStatuses"][0]["restartCount"];
        (pod["metadata"]["uid"].clone(), starts.clone())
    };
    pods["items"].as_array().unwrap().iter().map(life).collect()
}

fn apply(instance: &Instance, objects: &Value) {
    let file = instance.temporary.path().join("objects.json");
    fs::write(&file, objects.to_string()).unwrap();
    instance.kubectl_ok(&["apply", "-f", file.to_str().unwrap()]);
}

impl Database {
    fn pod_name(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn service(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": self.name }, "spec": {
            "clusterIP": "None", "selector": { "app": self.name }, "ports": [{ "port": self.port }] } })
    }

    fn claim(&self, number: usize) -> Value {
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": self.pod_name(number) },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } })
    }

    fn pod(&self, number: usize) -> Value {
        let environment = self.environment.iter();
        let environment: Vec<_> = environment
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        let name = self.pod_name(number);
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": self.name } }, "spec": {
            "hostname": name, "subdomain": self.name, "terminationGracePeriodSeconds": GRACE.as_secs(),
            "nodeSelector": { "kubernetes.io/hostname": format!("node-{}", number + 1) },
            "containers": [{ "name": "main", "image": self.image, "imagePullPolicy": "Never", "env": environment,
                "ports": [{ "containerPort": self.port }],
                "readinessProbe": { "periodSeconds": 1, "exec": { "command": ["sh", "-c", self.is_ready] } },
                "resources": { "requests": { "cpu": "10m" }, "limits": { "memory": self.memory } },
                "volumeMounts": [{ "name": "data", "mountPath": self.data }] }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }] } })
    }

    fn wait_until_ready(&self, instance: &Instance, number: usize) {
        let pod = format!("pod/{}", self.pod_name(number));
        instance.kubectl_ok(&["wait", "--for=condition=Ready", &pod, "--timeout=180s"]);
    }

    /// Asks the first server from within the second one's pod, by name.
    fn ask(&self, instance: &Instance, command: &str) -> std::process::Output {
        let script = command.replace("HOST", &format!("{}.{}", self.pod_name(0), self.name));
        instance.kubectl(&["exec", &self.pod_name(1), "--", "sh", "-c", &script])
    }

    fn answers_its_twin_by_name(&self, instance: &Instance) {
        let address = |number| instance.get(&["pod", &self.pod_name(number)])["status"]["podIP"].clone();
        assert_ne!(address(0), address(1), "{}", self.name);
        let written = self.ask(instance, self.write);
        assert!(
            written.status.success(),
            "{}: {}",
            self.name,
            String::from_utf8_lossy(&written.stderr)
        );
        self.has_kept(instance);
    }

    fn has_kept(&self, instance: &Instance) {
        wait_until(&format!("{} answers with what was written", self.name), || {
            self.ask(instance, self.read).stdout == b"kept\n"
        });
    }

    fn ends_cleanly_and_comes_back(&self, instance: &Instance) {
        let name = self.pod_name(0);
        let mut following = instance
            .kubectl_command(&["logs", "--follow", "--tail=1", &name])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(following.stdout.take().unwrap());
        let mut text = String::new();
        log.read_line(&mut text).unwrap();
        let started = Instant::now();
        instance.kubectl_ok(&["delete", "pod", &name]);
        assert!(
            started.elapsed() < GRACE,
            "{name} was killed after {:?}",
            started.elapsed()
        );
        log.read_to_string(&mut text).unwrap();
        following.wait().unwrap();
        assert!(text.contains(self.farewell), "{name} said: {text}");
        apply(instance, &self.pod(0));
        self.wait_until_ready(instance, 0);
        self.has_kept(instance);
    }

    fn comes_back_from_its_memory_limit(&self, instance: &Instance) {
        let name = self.pod_name(0);
        assert!(!self.ask(instance, self.devour).status.success(), "{name} took it all");
        let was_killed = || {
            let status = &instance.get(&["pod", &name])["status"]["containerStatuses"][0];
            status["lastState"]["terminated"]["reason"] == "OOMKilled" && status["restartCount"] == 1
        };
        let has_survived = || {
            let log = || instance.kubectl_ok(&["logs", &name]);
            self.survives.is_some_and(|words| log().contains(words))
        };
        wait_until(&format!("{name} is killed by its memory limit"), || {
            was_killed() || has_survived()
        });
        self.has_kept(instance);
    }
}
