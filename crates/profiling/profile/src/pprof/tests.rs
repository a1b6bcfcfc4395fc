use super::messages::Profile;
use super::*;
use flate2::read::GzDecoder;
use std::io::Read as _;
use std::process::Command;

fn sample() -> crate::Profile {
    crate::Profile::parse(include_bytes!("../../samples/redis-set.json")).expect("well-formed")
}

fn decoded(compressed: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut bytes).expect("gzip");
    Profile::decode(bytes.as_slice()).expect("a profile")
}

/// Returns each sample as `innermost (file:line in MODULE) < caller < … {key=value …} value …`.
fn lines(profile: &Profile) -> Vec<String> {
    let string = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].as_str();
    let frame = |line: &Line, mapping: u64| {
        let function = &profile.function[index(line.function_id)];
        let mut text = string(function.name).to_owned();
        if function.filename != 0 {
            text += &format!(" {}:{}", string(function.filename), line.line);
        }
        if mapping != 0 {
            text += &format!(" in {}", string(profile.mapping[index(mapping)].filename));
        }
        text
    };
    let shown = |sample: &Sample| {
        let locations = sample.location_id.iter().map(|id| &profile.location[index(*id)]);
        let frames: Vec<String> = locations
            .map(|location| {
                let lines = location.line.iter().map(|line| frame(line, location.mapping_id));
                lines.collect::<Vec<_>>().join(" + ")
            })
            .collect();
        let labels: Vec<String> =
            sample.label.iter().map(|label| format!("{}={}", string(label.key), string(label.str))).collect();
        format!("{} {{{}}} {:?}", frames.join(" < "), labels.join(" "), sample.value)
    };
    profile.sample.iter().map(shown).collect()
}

#[test]
fn equal_stacks_are_one_sample_and_inlined_frames_share_a_location() {
    let module = Module { path: "/bin/server".to_owned(), build_id: "0a0b".to_owned() };
    let named = |function| Frame { function, module: Some(&module), ..Frame::default() };
    let inlined = Frame { file: Some("a.c"), line: Some(7), is_inlined: true, ..named("inner") };
    let stack = [Frame { function: "memcpy", ..Frame::default() }, inlined, named("outer"), named("main")];
    let mut encoder = Encoder::new(&[("samples", "count"), ("cpu", "nanoseconds")], 1);
    encoder.set_period(("cpu", "nanoseconds"), 1_000_000);
    encoder.set_time(5, 6);
    encoder.add(stack, &[1, 10], &[("thread", "a")]);
    encoder.add(stack, &[2, i64::MAX], &[("thread", "a")]);
    encoder.add(stack, &[4, 5], &[("thread", "b")]);
    // The function that contains the last frame is unknown; control characters cannot reach a terminal.
    encoder.add([named("main"), Frame { function: "x\x1b[2J", ..inlined }], &[0, -1], &[]);
    encoder.add([], &[1, 1], &[]);
    let profile = decoded(&encoder.finish());
    let expected = "memcpy < inner a.c:7 in /bin/server + outer in /bin/server < main in /bin/server";
    assert_eq!(
        lines(&profile),
        [
            format!("{expected} {{thread=a}} [3, {}]", i64::MAX),
            format!("{expected} {{thread=b}} [4, 5]"),
            "main in /bin/server < x\u{fffd}[2J a.c:7 in /bin/server {} [0, -1]".to_owned(),
            " {} [1, 1]".to_owned(),
        ]
    );
    let string = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].as_str();
    assert_eq!((string(0), string(profile.default_sample_type)), ("", "cpu"));
    assert_eq!(string(profile.period_type.expect("given").r#type), "cpu");
    assert_eq!((profile.period, profile.time_nanos, profile.duration_nanos), (1_000_000, 5, 6));
    let mapping = profile.mapping[0];
    assert_eq!(profile.mapping.len(), 1);
    assert_eq!((string(mapping.filename), string(mapping.build_id)), ("/bin/server", "0a0b"));
    assert!(mapping.has_functions && mapping.has_filenames && mapping.has_line_numbers);
    assert!(mapping.has_inline_frames);
    // Every id is the position in its table, so `index` finds it; no string is there twice.
    assert!(profile.location.iter().zip(1..).all(|(location, id)| location.id == id));
    assert!(profile.function.iter().zip(1..).all(|(function, id)| function.id == id));
    let mut strings = profile.string_table.clone();
    strings.sort();
    strings.dedup();
    assert_eq!(strings.len(), profile.string_table.len());
}

#[test]
fn a_recording_keeps_its_stacks_and_sums() {
    let recorded = sample();
    let profile = decoded(&encode(&recorded));
    let sum = |value: usize| profile.sample.iter().map(|sample| sample.value[value]).sum::<i64>();
    let expected = |field: fn(&crate::model::Site) -> u64| recorded.sites.iter().map(field).sum::<u64>();
    let sums = [expected(|site| site.events), expected(|site| site.bytes), expected(|site| site.ns)];
    assert_eq!([sum(0), sum(1), sum(2)], sums.map(clamped));
    assert_eq!(sum(3), recorded.sites.iter().map(|site| site.saved_ns).sum::<i64>());
    // The stacks are those of the folded format, with their bytes.
    let folded = crate::folded::folded(&recorded);
    let mut stacks = std::collections::BTreeMap::<String, i64>::new();
    for sample in &profile.sample {
        let lines = sample.location_id.iter().flat_map(|id| &profile.location[index(*id)].line);
        let names: Vec<&str> = lines
            .map(|line| profile.function[index(line.function_id)].name)
            .map(|name| profile.string_table[usize::try_from(name).expect("an index")].as_str())
            .collect();
        *stacks.entry(names.into_iter().rev().collect::<Vec<_>>().join(";")).or_default() += sample.value[1];
    }
    let lines: String = stacks.iter().map(|(stack, bytes)| format!("{stack} {bytes}\n")).collect();
    assert_eq!(lines, folded);
    let main = profile.string_table[usize::try_from(profile.mapping[0].filename).expect("an index")].as_str();
    assert!(main.ends_with("redis-server"), "{main}");
}

/// Has Go's own reader check the profile, which refuses dangling ids, and show it.
#[test]
fn go_tool_pprof_reads_a_recording() {
    let run = |arguments: &[&str]| {
        let found = ["go", "/usr/local/go/bin/go"].map(|go| Command::new(go).args(arguments).output());
        found.into_iter().find_map(Result::ok)
    };
    if !run(&["tool", "-n", "pprof"]).is_some_and(|done| done.status.success()) {
        // By the handle, which the tests' harness does not hold back.
        let why = "there is no 'go tool pprof'";
        return writeln!(std::io::stderr(), "skipped: go_tool_pprof_reads_a_recording: {why}")
            .expect("stderr");
    }
    let recorded = sample();
    let file = std::env::temp_dir().join(format!("uncopy-pprof-{}.pb.gz", std::process::id()));
    std::fs::write(&file, encode(&recorded)).expect("written");
    let path = file.to_str().expect("UTF-8");
    let shown = |arguments: &[&str]| {
        let done = run(&[&["tool", "pprof"], arguments, &[path]].concat()).expect("go");
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        text
    };
    let (raw, top) = (shown(&["-raw"]), shown(&["-top", "-unit=B", "-nodecount=1000"]));
    let copies = shown(&["-top", "-unit=B", "-tagfocus=call=copy"]);
    let comments = shown(&["-comments"]);
    std::fs::remove_file(&file).expect("removed");
    assert!(raw.contains("calls/count bytes/bytes[dflt] time/nanoseconds saved/nanoseconds"), "{raw}");
    // The flat column of the functions called is the sum of their sites.
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for site in &recorded.sites {
        *sums.entry(site.name.as_str()).or_default() += site.bytes;
    }
    let is_row = |text: &str, name: &str, bytes: u64| {
        text.lines().any(|line| line.trim_start().starts_with(&format!("{bytes}B ")) && line.ends_with(name))
    };
    for (name, bytes) in &sums {
        assert!(is_row(&top, &format!(" {name}"), *bytes), "{name} {bytes}: {top}");
    }
    let is_shown = |name: &str| copies.lines().any(|line| line.ends_with(&format!(" {name}")));
    assert!(is_shown("memcpy") && !is_shown("read"), "{copies}");
    assert!(comments.contains(&recorded.command.join(" ")), "{comments}");
}
