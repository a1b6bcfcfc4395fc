use super::*;
use uncopy_profile::model::{Flow, Frame, Loser, Module, OperationClass, Step};

pub(super) const SAMPLE: &str = include_str!("../../../profile/samples/redis-set.json");

fn sample() -> Profile {
    Profile::parse(SAMPLE.as_bytes()).expect("a profile")
}

/// Returns the sample with every free-form string replaced by `text`.
fn hostile(text: &str) -> Profile {
    fn replace(value: &mut serde_json::Value, text: &str) {
        match value {
            serde_json::Value::String(string) => *string = text.to_owned(),
            serde_json::Value::Array(values) => values.iter_mut().for_each(|value| replace(value, text)),
            serde_json::Value::Object(values) => {
                let words = ["format", "call", "object", "verdict", "from", "to"];
                let values = values.iter_mut().filter(|(key, value)| {
                    !(words.contains(&key.as_str()) && (value.is_string() || value.is_array()))
                });
                values.for_each(|(_, value)| replace(value, text));
            }
            _ => {}
        }
    }
    let mut value: serde_json::Value = serde_json::from_str(SAMPLE).expect("JSON");
    replace(&mut value, text);
    serde_json::from_value(value).expect("a profile")
}

#[test]
fn the_page_of_redis_set_tells_its_chain() {
    let page = profile_page(&sample());
    for part in [
        "Each socket → file operation moves its 256K 3.0 times inside redis-server",
        "uncopy would elide 3 of 3; 4 % of the copied bytes are touched afterwards.",
        "moved by 45 bytes towards its start",
        "memmove in sdsrange",
        "sds.c:560",
        "uncopy run -- redis-server --port 7000 --appendonly yes",
        "60,000 of 60,012",
        "dictExpand&lt;&quot;&amp;&#39;&gt;",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn names_from_a_program_never_become_markup() {
    let plain = profile_page(&hostile("x"));
    for text in [
        "<img src=x onerror=alert(1)>",
        "\"><script>alert(1)</script>",
        "' onload='alert(1)",
        "</svg></style></script></title><script>alert(1)</script>",
        "-->]]><a href=javascript:alert(1)>",
        "\0\u{202e}\u{2028}",
    ] {
        let page = profile_page(&hostile(text));
        // A hostile name must give as many elements as a harmless one.
        for part in ["<", ">", "=\""] {
            assert_eq!(page.matches(part).count(), plain.matches(part).count(), "{part} with {text:?}");
        }
    }
}

#[test]
fn an_empty_profile_has_a_page_too() {
    let page = profile_page(&Profile::default());
    assert!(page.contains("the program moved nothing") && page.contains("No copies were recorded"));
    assert!(!page.contains("NaN"));
}

#[test]
fn thousands_of_sites_make_a_page_of_bounded_size() {
    let mut profile = sample();
    let (site, stacks) = (profile.sites[1].clone(), profile.stacks.len());
    profile.modules =
        (0..500).map(|at| Module { path: format!("/lib/{at}.so"), build_id: String::new() }).collect();
    for at in 0..5_000usize {
        let frame = Frame { function: "f".repeat(5000), module: Some(at % 500), ..Frame::default() };
        profile.frames.push(frame);
        profile.stacks.push(vec![profile.frames.len() - 1; 64]);
        let id = profile.sites.len();
        let name = "n".repeat(3000);
        profile.sites.push(Site { id, name, place: "p".repeat(9000), stack: stacks + at, ..site.clone() });
        profile.flows.push(Flow { from: Some(id - 1), to: id, bytes: 1, events: 1 });
        profile.flows.push(Flow { from: Some(id), to: id / 2, bytes: 1, events: 1 });
        profile.prediction.losers.push(Loser { site: id, why: "w".repeat(999), ..Loser::default() });
        profile.warnings.push("x".to_owned());
        let steps = vec![Step { site: id, source: "s".repeat(999), ..Step::default() }; 100];
        if at % 100 == 0 {
            profile.operations.push(OperationClass {
                steps,
                name: "o".repeat(999),
                ..OperationClass::default()
            });
        }
    }
    assert_eq!(profile.check(), Ok(()));
    let page = profile_page(&profile);
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
}

#[test]
fn commands_are_quoted_as_a_shell_wants_them() {
    let profile = Profile { command: ["a b", "it's", "", "--x=1"].map(str::to_owned).to_vec(), ..sample() };
    assert_eq!(command_line(&profile), "'a b' 'it'\\''s' '' --x=1");
}
