//! The recipes that come with the program, built for real and started as a container would.
//!
//! Building fetches packages and takes a minute each, so these run only when asked for:
//! `cargo test -p moorline-image --test recipes -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on panics, and says when it is skipped"
)]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use moorline_image::{Error, Image, ImageStore, Options, Progress, Reference};

/// One store for all, so that the base is made once. It is kept between runs where `MOORLINE_TEST_STORE` names a place.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<(PathBuf, Option<tempfile::TempDir>)> = OnceLock::new();
    let (path, _) = DIRECTORY.get_or_init(|| {
        if let Some(path) = std::env::var_os("MOORLINE_TEST_STORE") {
            return (path.into(), None);
        }
        let directory = tempfile::tempdir().unwrap();
        (directory.path().to_owned(), Some(directory))
    });
    path
}

async fn built(name: &str) -> Option<Image> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: building an image from packages needs root");
        return None;
    }
    let store = ImageStore::open(directory(), Options::default()).await.unwrap();
    let reference: Reference = name.parse().unwrap();
    if let Ok(image) = store.get(name).await {
        return Some(image);
    }
    let recipe = store.recipes().iter().find(|recipe| recipe.may_provide(&reference));
    match store.build(recipe.unwrap(), Some(reference), Progress::none()).await {
        Err(error @ Error::CannotBuild { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        result => Some(result.unwrap()),
    }
}

/// Runs a script beside a started container: `start ARG…` runs the image's entry point in the background with the
/// environment given before it, `inside ARG…` another command in the same root. All ends with the script.
fn try_out(image: &Image, script: &str) -> Output {
    let scratch = tempfile::tempdir().unwrap();
    let lower: Vec<String> = image.layers.iter().map(|layer| layer.display().to_string()).collect();
    let prelude = format!(
        r#"set -eu
cd {scratch}
mkdir upper work root
mount -t overlay overlay -o lowerdir={lower},upperdir=upper,workdir=work root
mount -t proc proc root/proc
mount -t tmpfs tmpfs root/dev
mknod -m 666 root/dev/null c 1 3; mknod -m 666 root/dev/zero c 1 5; mknod -m 666 root/dev/full c 1 7
mknod -m 666 root/dev/random c 1 8; mknod -m 666 root/dev/urandom c 1 9
ln -s /proc/self/fd root/dev/fd
mkdir root/dev/shm
ip link set lo up
ip address add 192.0.2.1/32 dev lo
into="chroot root"
inside() {{ $into env -i {env} sh -c 'cd {start}; exec env "$@"' sh "$@"; }}
start() {{ (exec $into env -i {env} sh -c 'cd {start}; exec env "$@"' sh "$@") > log 2>&1 & server=$!; }}
until_works() {{ for _ in $(seq 600); do if "$@" > /dev/null 2>&1; then return; fi; kill -0 $server || {{ cat log; exit 1; }}; sleep 0.1; done; cat log; exit 1; }}
"#,
        scratch = scratch.path().display(),
        lower = lower.join(":"),
        env = image.config.env.join(" "),
        start = if image.config.working_dir.is_empty() {
            "/"
        } else {
            &image.config.working_dir
        },
    );
    Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
        ])
        .arg(format!("{prelude}{script}"))
        .output()
        .unwrap()
}

#[track_caller]
fn succeeds(image: &Image, script: &str) -> String {
    let output = try_out(image, script);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{complaints}", output.status);
    text
}

#[tokio::test]
#[ignore = "fetches packages and takes a minute"]
async fn postgres_starts_as_its_public_image_does() {
    let Some(image) = built("postgres:17").await else {
        return;
    };
    assert!(image.config.labels["moorline.version"].starts_with("17."));
    let text = succeeds(
        &image,
        r#"
mkdir -p root/docker-entrypoint-initdb.d
echo 'create table made_by_sql (x int);' > root/docker-entrypoint-initdb.d/1.sql
echo 'psql -U "$POSTGRES_USER" -d "$POSTGRES_DB" -c "create table made_by_script (x int)"' > root/docker-entrypoint-initdb.d/2.sh
start POSTGRES_PASSWORD=secret POSTGRES_USER=app POSTGRES_DB=shop docker-entrypoint.sh postgres -c max_connections=33
until_works inside PGPASSWORD=secret psql -h 127.0.0.1 -U app -d shop -c 'select 1'
sql() { inside PGPASSWORD=secret psql -h 192.0.2.1 -U app -d shop -tAc "$1"; }
sql 'show max_connections'
sql 'select count(*) from made_by_sql, made_by_script'
inside PGPASSWORD=wrong psql -h 192.0.2.1 -U app -d shop -c 'select 1' 2>&1 | grep -q 'password authentication failed'
stat -c 'uid %u' /proc/$server root/var/lib/postgresql/data/PG_VERSION | sort -u
sql 'show listen_addresses'
sql "select datcollate from pg_database where datname = 'shop'"
kill -INT $server; wait $server
# The data directory is kept as it is, whatever the environment says now.
start POSTGRES_PASSWORD=other docker-entrypoint.sh postgres
until_works inside PGPASSWORD=secret psql -h 127.0.0.1 -U app -d shop -c 'select 1'
kill -INT $server; wait $server
"#,
    );
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["33", "0", "uid 999", "*", "en_US.utf8"]
    );
    let refused = try_out(
        &image,
        "start docker-entrypoint.sh postgres; wait $server || true; cat log; exit 3",
    );
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("POSTGRES_PASSWORD"));
    // As the user 999 from the start, and as one that has no name.
    for user in ["999:999", "12345:0"] {
        let script = format!(
            "mkdir root/data; chown {user} root/data; chmod 700 root/data\n\
             into='chroot --userspec={user} --groups= root'\n\
             start PGDATA=/data/pg POSTGRES_PASSWORD=x docker-entrypoint.sh postgres\n\
             until_works inside PGPASSWORD=x psql -h 127.0.0.1 -U postgres -c 'select 1'\n\
             kill -INT $server; wait $server\n"
        );
        succeeds(&image, &script);
    }
}

#[tokio::test]
#[ignore = "fetches packages and takes a minute"]
async fn valkey_starts_as_its_public_image_does() {
    let Some(image) = built("valkey/valkey:8").await else {
        return;
    };
    let text = succeeds(
        &image,
        r"
start docker-entrypoint.sh valkey-server --requirepass secret --maxmemory 100mb
until_works inside valkey-cli -a secret ping
inside valkey-cli -a secret config get maxmemory 2> /dev/null | tail -n 1
inside valkey-cli -a secret config get protected-mode 2> /dev/null | tail -n 1
inside valkey-cli -a secret config get dir 2> /dev/null | tail -n 1
stat -c 'uid %u' /proc/$server
kill $server; wait $server
mkdir root/etc/demo; printf 'port 7000\nprotected-mode yes\n' > root/etc/demo/valkey.conf
start docker-entrypoint.sh /etc/demo/valkey.conf
until_works inside valkey-cli -p 7000 ping
inside valkey-cli -p 7000 config get protected-mode | tail -n 1
kill $server; wait $server
",
    );
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        ["104857600", "no", "/data", "uid 999", "yes"]
    );
}

#[tokio::test]
#[ignore = "fetches packages and takes a minute"]
async fn mariadb_starts_as_its_public_image_does() {
    let Some(image) = built("mariadb:11.8").await else {
        return;
    };
    let text = succeeds(
        &image,
        r#"
mkdir -p root/docker-entrypoint-initdb.d
echo 'create table made_by_sql (x int);' > root/docker-entrypoint-initdb.d/1.sql
start MARIADB_ROOT_PASSWORD="it's secret" MYSQL_DATABASE=shop MARIADB_USER=app MARIADB_PASSWORD=word docker-entrypoint.sh mariadbd --max-connections=33
until_works inside mariadb -h 127.0.0.1 -uapp -pword shop -e 'select 1'
inside mariadb -h 127.0.0.1 -uapp -pword shop -Ne 'select @@max_connections; select count(*) from made_by_sql'
inside mariadb -h 127.0.0.1 -uroot "-pit's secret" -Ne 'select count(*) from mysql.global_priv where user = ""; select @@bind_address'
stat -c 'uid %u' /proc/$server
kill $server; wait $server
start MARIADB_ROOT_PASSWORD=other docker-entrypoint.sh mariadbd
until_works inside mariadb -h 127.0.0.1 -uapp -pword shop -e 'select 1'
kill $server; wait $server
"#,
    );
    assert_eq!(text.lines().collect::<Vec<_>>(), ["33", "0", "0", "*", "uid 999"]);
    let refused = try_out(
        &image,
        "start docker-entrypoint.sh mariadbd; wait $server || true; cat log; exit 3",
    );
    assert!(String::from_utf8_lossy(&refused.stdout).contains("MARIADB_ROOT_PASSWORD"));
}

#[tokio::test]
#[ignore = "fetches packages and takes a minute"]
async fn recipes_of_one_suite_share_their_base() {
    let (Some(valkey), Some(postgres)) = (built("valkey/valkey:8").await, built("postgres:17").await) else {
        return;
    };
    assert_eq!(valkey.layers.last(), postgres.layers.last());
    assert_eq!((valkey.layers.len(), postgres.layers.len()), (2, 2));
}
