use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use super::*;

/// A folder of its own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("moorline-certificates-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn now() -> Timestamp {
    Timestamp::now()
}

#[test]
fn the_next_start_finds_what_the_first_one_made() {
    let folder = Folder::new("found");
    let first = Certificates::open(&folder.0, &[], now()).unwrap();
    let next = Certificates::open(&folder.0, &[], now()).unwrap();
    assert_eq!(first.authority.certificate(), next.authority.certificate());
    assert_eq!(first.server.certificate(), next.server.certificate());
    assert_eq!(first.admin.key_pem(), next.admin.key_pem());
    assert_eq!(first.service_account_key.pkcs8(), next.service_account_key.pkcs8());
}

#[test]
fn nothing_on_disk_is_open_to_others() {
    let folder = Folder::new("modes");
    Certificates::open(&folder.0, &[], now()).unwrap();
    assert_eq!(mode(&folder.0), 0o700);
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(&folder.0).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(
        names,
        [
            "admin.crt",
            "admin.key",
            "apiserver.crt",
            "apiserver.key",
            "ca.crt",
            "ca.key",
            "sa.key"
        ]
    );
    fs::set_permissions(folder.0.join("sa.key"), fs::Permissions::from_mode(0o644)).unwrap();
    Certificates::open(&folder.0, &[], now()).unwrap();
    assert_eq!(mode(&folder.0.join("sa.key")), 0o600);
}

#[test]
fn the_server_certificate_follows_its_names_and_its_expiry() {
    let folder = Folder::new("renewed");
    let first = Certificates::open(&folder.0, &[], now()).unwrap();
    let named = Certificates::open(&folder.0, &["db.example".into(), "10.0.0.1".into()], now()).unwrap();
    assert_ne!(first.server.certificate(), named.server.certificate());
    assert!(named.server.names().contains(&ServerName::Dns("db.example".to_owned())));
    assert!(
        named
            .server
            .names()
            .contains(&ServerName::Address([10, 0, 0, 1].into()))
    );
    assert!(
        named
            .server
            .names()
            .contains(&ServerName::Address([127, 0, 0, 1].into()))
    );
    assert_eq!(first.admin.certificate(), named.admin.certificate());

    let later = now() + IDENTITY_LASTS - SignedDuration::from_hours(24);
    let renewed = Certificates::open(&folder.0, &[], later).unwrap();
    assert_ne!(first.admin.certificate(), renewed.admin.certificate());
    assert!(renewed.admin.expires() > later + RENEW_BEFORE);
    assert_eq!(first.authority.certificate(), renewed.authority.certificate());
}

#[test]
fn a_lost_or_foreign_authority_key_is_an_error_and_changes_nothing() {
    let folder = Folder::new("lost");
    Certificates::open(&folder.0, &[], now()).unwrap();
    let key = fs::read_to_string(folder.0.join("ca.key")).unwrap();
    fs::remove_file(folder.0.join("ca.key")).unwrap();
    let error = Certificates::open(&folder.0, &[], now()).unwrap_err();
    assert!(error.to_string().contains("ca.key is unusable"), "{error}");
    fs::copy(folder.0.join("admin.key"), folder.0.join("ca.key")).unwrap();
    let error = Certificates::open(&folder.0, &[], now()).unwrap_err();
    assert!(
        error.to_string().contains("the key belongs to another certificate"),
        "{error}"
    );
    fs::write(folder.0.join("ca.key"), key).unwrap();
    Certificates::open(&folder.0, &[], now()).unwrap();
}

#[test]
fn a_start_that_stopped_half_way_is_finished_by_the_next() {
    let folder = Folder::new("half");
    Certificates::open(&folder.0, &[], now()).unwrap();
    for certificate in ["ca.crt", "apiserver.crt", "admin.crt"] {
        fs::remove_file(folder.0.join(certificate)).unwrap();
    }
    let healed = Certificates::open(&folder.0, &[], now()).unwrap();
    assert!(healed.authority.signed(&healed.server, now()));
    assert!(healed.authority.signed(&healed.admin, now()));
}

#[test]
fn an_identity_that_is_foreign_or_lacks_its_key_is_made_anew() {
    let (one, other) = (Folder::new("own"), Folder::new("foreign"));
    Certificates::open(&one.0, &[], now()).unwrap();
    Certificates::open(&other.0, &[], now()).unwrap();
    for file in ["admin.crt", "admin.key"] {
        fs::copy(other.0.join(file), one.0.join(file)).unwrap();
    }
    fs::remove_file(one.0.join("apiserver.key")).unwrap();
    let healed = Certificates::open(&one.0, &[], now()).unwrap();
    assert!(healed.authority.signed(&healed.admin, now()));
    assert!(healed.authority.signed(&healed.server, now()));
}

#[test]
fn a_request_is_signed_for_a_client_and_nothing_more() {
    let certificates = Certificates::ephemeral(&[], now()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "devs");
    params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let hour = SignedDuration::from_hours(1);
    let pem = certificates
        .authority
        .sign_client(&request, now(), now() + hour)
        .unwrap();
    let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let parsed = parsed.parse_x509().unwrap();
    assert_eq!(parsed.subject().to_string(), "O=devs, CN=jane");
    assert!(!parsed.is_ca());
    assert!(parsed.extended_key_usage().unwrap().unwrap().value.client_auth);

    params.subject_alt_names = vec![rcgen::SanType::DnsName("kubernetes".try_into().unwrap())];
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    assert!(
        certificates
            .authority
            .sign_client(&request, now(), now() + hour)
            .is_err()
    );
    assert!(
        certificates
            .authority
            .sign_client("garbage", now(), now() + hour)
            .is_err()
    );
}

#[test]
fn a_kubeconfig_is_private_from_the_start_and_replaces_what_was_there() {
    let folder = Folder::new("kubeconfig");
    fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join("config");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let certificates = Certificates::ephemeral(&[], now()).unwrap();
    let (authority, identity) = (&certificates.authority, &certificates.admin);
    Kubeconfig {
        name: "moorline",
        server: "https://127.0.0.1:1",
        authority,
        identity,
    }
    .write(&path)
    .unwrap();
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("apiVersion: v1\nkind: Config\n"), "{text}");
    assert!(text.contains("    server: \"https://127.0.0.1:1\"\n"), "{text}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no draft is left behind");
}

#[test]
fn nothing_secret_is_printed() {
    let certificates = Certificates::ephemeral(&[], now()).unwrap();
    let printed = format!("{certificates:?}");
    assert!(!printed.contains("PRIVATE"), "{printed}");
    assert!(printed.contains("ServiceAccountKey(..)"), "{printed}");
}

#[test]
fn all_of_it_is_made_in_no_time() {
    let fastest = (0..5)
        .map(|_| {
            let start = std::time::Instant::now();
            Certificates::ephemeral(&[], now()).unwrap();
            start.elapsed()
        })
        .min()
        .unwrap();
    eprintln!("{fastest:?}");
    assert!(fastest < std::time::Duration::from_millis(100), "{fastest:?}");
}
