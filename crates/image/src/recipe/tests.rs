use proptest::prelude::*;

use super::*;

const GOOD: &str = "image: demo:17\nversion: {package: demo-17}\nsuite: trixie\npackages: [demo-17]\n";

fn parse(text: &str) -> Result<Recipe> {
    Recipe::parse("demo", text, &|source| Ok(format!("content of {source}").into_bytes()))
}

fn reference(name: &str) -> Reference {
    name.parse().unwrap()
}

#[test]
fn every_recipe_that_comes_with_the_program_is_valid_and_no_two_claim_one_image() {
    let recipes = Recipe::built_in();
    assert!(recipes.len() >= 3);
    for recipe in &recipes {
        let claimed = recipes
            .iter()
            .filter(|other| other.may_provide(recipe.stands_in_for()))
            .count();
        assert_eq!(claimed, 1, "{}", recipe.name());
        assert!(!recipe.config.entrypoint.is_empty() && !recipe.config.cmd.is_empty());
        let script = recipe
            .files
            .iter()
            .find(|file| file.path.ends_with("docker-entrypoint.sh"));
        assert_eq!(script.unwrap().mode, 0o755, "{}", recipe.name());
    }
}

#[test]
fn a_recipe_may_provide_its_image_and_more_precise_ones_of_its_suite() {
    let recipe = parse(GOOD).unwrap();
    for name in [
        "demo:17",
        "docker.io/library/demo:17",
        "demo:17.6",
        "demo:17-trixie",
        "demo:17.6.1-trixie",
    ] {
        assert!(recipe.may_provide(&reference(name)), "{name}");
    }
    for name in [
        "demo",
        "demo:16",
        "demo:1",
        "demo:170",
        "demo:17-alpine",
        "demo:17-bookworm",
        "demo:latest",
        "other:17",
        "quay.io/library/demo:17",
        &format!("demo@{}", crate::Digest::of(b"x")),
    ] {
        assert!(!recipe.may_provide(&reference(name)), "{name}");
    }
}

#[test]
fn an_image_gets_only_names_that_its_version_bears_out() {
    let recipe = parse(GOOD).unwrap();
    let names = |version: &str| -> Vec<String> {
        let names = recipe.names(version);
        names.iter().map(|name| name.tag().unwrap().to_owned()).collect()
    };
    assert_eq!(names("17.6-0+deb13u1"), ["17", "17.6"]);
    assert_eq!(names("1:17.6.2+dfsg1-3"), ["17", "17.6", "17.6.2"]);
    assert_eq!(names("17-1"), ["17"]);
    for other in ["16.9-1", "170.1-1", "1.17-1", "17~beta1-1", "", "-", ":"] {
        assert!(names(other).is_empty(), "{other}");
    }
    assert!(recipe.may_be_named(&reference("demo:17.6"), "17.6-1"));
    assert!(!recipe.may_be_named(&reference("demo:17.5"), "17.6-1"));
    assert!(!recipe.may_be_named(&reference("demo:17.6.1"), "17.6-1"));
}

#[test]
fn files_are_loaded_from_beside_the_recipe_or_from_within() {
    let text = format!(
        "{GOOD}files:\n  - {{path: /a/b, mode: \"0755\", source: script.sh}}\n  - {{path: /c, content: text}}\n"
    );
    let recipe = parse(&text).unwrap();
    assert_eq!(recipe.files[0].content, b"content of script.sh");
    assert_eq!((recipe.files[0].mode, recipe.files[1].mode), (0o755, 0o644));
    assert_eq!(recipe.files[1].content, b"text");
}

#[test]
fn recipes_that_cannot_be_meant_are_refused_with_the_reason() {
    for (text, reason) in [
        (String::new(), ""),
        ("[]".to_owned(), ""),
        (GOOD.replace("demo:17", "demo"), "version"),
        (GOOD.replace("demo:17", "demo:latest"), "version"),
        (GOOD.replace("demo:17", "DEMO:17"), "not the name of an image"),
        (GOOD.replace("trixie", "../../etc"), "suite"),
        (GOOD.replace("trixie", "-o"), "suite"),
        (GOOD.replace("[demo-17]", "[]"), "none"),
        (GOOD.replace("[demo-17]", "[\"demo;reboot\"]"), "package"),
        (GOOD.replace("[demo-17]", "[\"--option\"]"), "package"),
        (GOOD.replace("[demo-17]", "[demo-]"), "package"),
        (GOOD.replace("[demo-17]", "[\"a,b\"]"), "package"),
        (format!("{GOOD}surprise: 1\n"), "surprise"),
        (format!("{GOOD}env: [NOVALUE]\n"), "KEY=VALUE"),
        (format!("{GOOD}files: [{{path: ../x, content: y}}]\n"), "path"),
        (format!("{GOOD}files: [{{path: /a/../b, content: y}}]\n"), "path"),
        (format!("{GOOD}files: [{{path: /a}}]\n"), "either"),
        (
            format!("{GOOD}files: [{{path: /a, content: b, source: c}}]\n"),
            "either",
        ),
        (
            format!("{GOOD}files: [{{path: /a, content: b, mode: \"9\"}}]\n"),
            "mode",
        ),
        (
            format!("{GOOD}files: [{{path: /a, content: b, mode: \"77777\"}}]\n"),
            "mode",
        ),
        (format!("{GOOD}exclude: [relative]\n"), "path"),
        (
            format!("{GOOD}users: [{{name: \"a:b\", uid: 1, gid: 1, home: /a}}]\n"),
            "user",
        ),
        (format!("{GOOD}users: [{{name: a, uid: -1, gid: 1, home: /a}}]\n"), ""),
        (
            format!("{GOOD}users: [{{name: a, uid: 1, gid: 1, home: \"/a:/b\"}}]\n"),
            "path",
        ),
        (format!("{GOOD}# {}", "x".repeat(2 << 20)), "larger"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_recipe_or_an_error(text in ".{0,200}") {
        let _ = parse(&text);
        let _ = parse(&format!("{GOOD}{text}"));
    }

    #[test]
    fn any_version_gives_names_that_it_begins_with(version in "[0-9a-z:.+~-]{0,20}") {
        let recipe = parse(GOOD).unwrap();
        for name in recipe.names(&version) {
            let tag = name.tag().unwrap().to_owned();
            prop_assert!(tag.starts_with("17"));
            let upstream = version.split_once(':').map_or(&*version, |(_, rest)| rest);
            prop_assert!(upstream.starts_with(&tag), "{} {}", upstream, tag);
        }
    }
}
