//! What the host's apt knows: where Debian is fetched from, and through which proxy.

use std::process::{Command, Stdio};

/// Where Debian is fetched from when the host itself is no Debian.
const MIRROR: &str = "http://deb.debian.org/debian/";
const SECURITY_MIRROR: &str = "http://deb.debian.org/debian-security/";
/// Suites that have neither updates nor security beside them.
const ROLLING: &[&str] = &["sid", "unstable", "experimental"];

/// The host's apt configuration, as far as another suite can use it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostApt {
    mirror: String,
    security: String,
    options: Vec<String>,
}

impl HostApt {
    pub(crate) fn read() -> std::io::Result<Self> {
        let format = "$(REPO_URI) $(RELEASE)";
        let targets = output("apt-get", &["indextargets", "--format", format, "Created-By: Packages"])?;
        let options = output("apt-config", &["dump"])?;
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Ok(Self::from(&targets, &options, &release))
    }

    fn from(targets: &str, options: &str, release: &str) -> Self {
        let field = |name: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        // A derivative's mirror has no Debian on it.
        let codename = field("VERSION_CODENAME=").filter(|_| field("ID=").as_deref() == Some("debian"));
        let codename = codename.unwrap_or_default();
        let find = |suite: &str| {
            let mut pairs = targets.lines().filter_map(|line| line.trim().rsplit_once(' '));
            pairs.find(|(_, found)| *found == suite).map(|(uri, _)| uri.to_owned())
        };
        let wanted = |line: &&str| {
            let key = line.split(' ').next().unwrap_or_default();
            ["Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv4"]
                .iter()
                .any(|prefix| key == *prefix || key.starts_with(&format!("{prefix}::")))
                // Certificates are named by paths that only the host has; apt reads them on the host, so they hold.
                && !line.ends_with("\"\";")
        };
        Self {
            mirror: find(&codename).unwrap_or_else(|| MIRROR.to_owned()),
            security: find(&format!("{codename}-security")).unwrap_or_else(|| SECURITY_MIRROR.to_owned()),
            options: options.lines().filter(wanted).map(str::to_owned).collect(),
        }
    }

    /// Lines for `sources.list`.
    pub(crate) fn sources(&self, suite: &str) -> String {
        let mut lines = format!("deb {} {suite} main\n", self.mirror);
        if !ROLLING.contains(&suite) {
            use std::fmt::Write as _;
            writeln!(lines, "deb {} {suite}-updates main", self.mirror).expect("a string takes every line");
            writeln!(lines, "deb {} {suite}-security main", self.security).expect("a string takes every line");
        }
        lines
    }

    /// Lines for `apt.conf`.
    pub(crate) fn options(&self) -> String {
        self.options.iter().flat_map(|line| [line, "\n"]).collect()
    }
}

fn output(program: &str, arguments: &[&str]) -> std::io::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let error = String::from_utf8_lossy(&output.stderr);
        Err(std::io::Error::other(format!("{program}: {}", error.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str = "ID=debian\nVERSION_CODENAME=bookworm\n";

    #[test]
    fn another_suite_comes_from_the_mirror_that_the_host_uses() {
        let apt = HostApt::from(
            "http://other.example/x/ nodistro\nhttp://mirror.example/debian/ bookworm\n\
             http://mirror.example/debian/ bookworm-updates\nhttp://safe.example/debian/ bookworm-security\n",
            "",
            BOOKWORM,
        );
        assert_eq!(
            apt.sources("trixie"),
            "deb http://mirror.example/debian/ trixie main\ndeb http://mirror.example/debian/ trixie-updates main\n\
             deb http://safe.example/debian/ trixie-security main\n"
        );
        assert_eq!(apt.sources("sid"), "deb http://mirror.example/debian/ sid main\n");
    }

    #[test]
    fn a_host_that_is_no_debian_uses_the_public_mirror() {
        let apt = HostApt::from(
            "http://ubuntu.example/ noble\n",
            "",
            "ID=ubuntu\nVERSION_CODENAME=noble\n",
        );
        assert!(
            apt.sources("trixie")
                .starts_with("deb http://deb.debian.org/debian/ trixie main\n")
        );
    }

    #[test]
    fn how_to_fetch_is_taken_over_and_what_concerns_the_host_alone_is_not() {
        let apt = HostApt::from(
            "",
            "APT::Architecture \"amd64\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://proxy.example:3142\";\n\
             DPkg::Post-Invoke:: \"rm -f /x\";\nAcquire::https::CaInfo \"/etc/ca.pem\";\n",
            BOOKWORM,
        );
        assert_eq!(
            apt.options(),
            "Acquire::http::Proxy \"http://proxy.example:3142\";\nAcquire::https::CaInfo \"/etc/ca.pem\";\n"
        );
    }
}
