//! Verifies that `docs/profile.schema.json` describes everything that is written, and nothing else.
#![allow(missing_docs, reason = "a test")]

use serde_json::Value;
use uncopy_profile::Profile;
use uncopy_profile::model::Measurement;

const SCHEMA: &str = include_str!("../../../../docs/profile.schema.json");
const SAMPLE: &str = include_str!("../samples/redis-set.json");

/// All keywords that the schema uses; the validator below would ignore others.
const KEYWORDS: [&str; 13] = [
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "minimum",
];

/// Returns an error where `value` does not match `schema`.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{at} {what}: {value}"));
    let schema = match schema.get("$ref").and_then(Value::as_str) {
        Some(name) => root.pointer(name.trim_start_matches('#')).ok_or(format!("no {name}"))?,
        None => schema,
    };
    let rules = schema.as_object().ok_or("a schema is an object")?;
    if let Some(unknown) = rules.keys().find(|key| !KEYWORDS.contains(&key.as_str()) && *key != "maximum") {
        return Err(format!("the schema uses {unknown}, which this test does not know"));
    }
    if let Some(types) = rules.get("type") {
        let is = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "null" => value.is_null(),
            _ => false,
        };
        let single = std::slice::from_ref(types);
        let types = types.as_array().map_or(single, Vec::as_slice);
        if !types.iter().filter_map(Value::as_str).any(is) {
            return wrong("has another type");
        }
    }
    if rules.get("const").is_some_and(|constant| constant != value) {
        return wrong("is another constant");
    }
    if rules.get("enum").and_then(Value::as_array).is_some_and(|words| !words.contains(value)) {
        return wrong("is no legal word");
    }
    let bound = |name: &str| rules.get(name).and_then(Value::as_f64);
    if let Some(number) = value.as_f64()
        && (bound("minimum").is_some_and(|least| number < least)
            || bound("maximum").is_some_and(|most| number > most))
    {
        return wrong("is out of range");
    }
    if let (Some(items), Some(values)) = (rules.get("items"), value.as_array()) {
        for (index, value) in values.iter().enumerate() {
            check(root, items, value, &format!("{at}[{index}]"))?;
        }
    }
    if let (Some(properties), Some(fields)) = (rules.get("properties"), value.as_object()) {
        let required = rules.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        if let Some(missing) =
            required.iter().filter_map(Value::as_str).find(|name| !fields.contains_key(*name))
        {
            return wrong(&format!("has no {missing}"));
        }
        for (name, value) in fields {
            let Some(schema) = properties.get(name) else { return wrong(&format!("has a {name}")) };
            check(root, schema, value, &format!("{at}.{name}"))?;
        }
    }
    Ok(())
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

#[test]
fn written_profiles_match_the_schema() {
    let schema = schema();
    let profile = Profile::parse(SAMPLE.as_bytes()).expect("well-formed");
    let measured = vec![
        Measurement { ratio: Some(0.8), low: Some(0.7), high: Some(0.9), ..Measurement::default() },
        Measurement::default(),
    ];
    for profile in [
        Profile { measured, ..profile },
        Profile { format: "uncopy-profile".into(), version: 1, ..Profile::default() },
    ] {
        let value: Value = serde_json::from_str(&profile.to_json()).expect("JSON");
        check(&schema, &schema, &value, "profile").expect("described");
    }
}

#[test]
fn schema_violations_are_rejected() {
    let schema = schema();
    let refused = |pointer: &str, wrong: Value| {
        let mut value: Value = serde_json::from_str(SAMPLE).expect("JSON");
        *value.pointer_mut(pointer).expect("there") = wrong;
        assert!(check(&schema, &schema, &value, "profile").is_err(), "{pointer}");
    };
    refused("/version", 2.into());
    refused("/sites/0/call", "copied".into());
    refused("/sites/0/bytes", (-1).into());
    refused("/operations/0/steps/0/share", 1.5.into());
    refused("/operations/0/steps/0/after", "x".into());
    refused("/prediction", Value::Null);
}
