//! A real registry on loopback: Debian's `docker-registry`.

use std::{
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use oci_client::{
    Client,
    client::{ClientConfig, ClientProtocol},
    secrets::RegistryAuth,
};
use tempfile::TempDir;

use crate::archives::Files;

/// A registry that ends with the test.
pub(crate) struct Registry {
    pub(crate) address: String,
    pub(crate) directory: TempDir,
    process: Child,
    auth: RegistryAuth,
}

impl Registry {
    /// Starts one, or says why the test cannot run.
    pub(crate) fn start(password: Option<&str>) -> Option<Self> {
        let Some(program) = program() else {
            eprintln!("skipped: there is no docker-registry; install it with: apt-get install docker-registry");
            return None;
        };
        // The port is free again before the registry takes it; should another be faster, the test fails and says so.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let directory = tempfile::tempdir().unwrap();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}/data}}\n\
             http:\n  addr: {address}\n",
            directory.path().display()
        );
        let auth = match password {
            None => RegistryAuth::Anonymous,
            Some(password) => {
                let file = directory.path().join("htpasswd");
                std::fs::write(&file, format!("somebody:{password}\n")).unwrap();
                let path = file.display().to_string();
                config.extend(["auth:\n  htpasswd: {realm: here, path: ", &path, "}\n"]);
                RegistryAuth::Basic("somebody".to_owned(), "hunter2".to_owned())
            }
        };
        let path = directory.path().join("config.yml");
        std::fs::write(&path, config).unwrap();
        let process = Command::new(program)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let registry = Self {
            address,
            directory,
            process,
            auth,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&registry.address).is_err() {
            assert!(Instant::now() < deadline, "the registry did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(registry)
    }

    /// Puts every blob of the files, and each manifest under its tag, into the registry.
    pub(crate) async fn push(&self, repository: &str, files: &Files, manifests: &[(&str, &str)]) {
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::Http,
            http_proxy: Some("http://127.0.0.1:9".to_owned()),
            no_proxy: Some("127.0.0.0/8".to_owned()),
            ..ClientConfig::default()
        });
        let name = |tag: &str| -> oci_client::Reference {
            let separator = if tag.starts_with("sha256:") { '@' } else { ':' };
            format!("{}/{repository}{separator}{tag}", self.address)
                .parse()
                .unwrap()
        };
        let push = oci_client::RegistryOperation::Push;
        client.auth(&name("x"), &self.auth, push).await.unwrap();
        for (path, content) in files {
            if let Some(hex) = path.strip_prefix("blobs/sha256/") {
                let digest = format!("sha256:{hex}");
                client.push_blob(&name("x"), content.clone(), &digest).await.unwrap();
            }
        }
        for (digest, tag) in manifests {
            let bytes = files[&format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))].clone();
            let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            let media_type = document["mediaType"].as_str().unwrap().parse().unwrap();
            client.push_manifest_raw(&name(tag), bytes, media_type).await.unwrap();
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The registry's program, found once for all tests.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/registry");
        let output = Command::new(script)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().into())
    });
    found.as_deref()
}
