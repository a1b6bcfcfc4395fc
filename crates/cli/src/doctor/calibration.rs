//! `uncopy doctor --calibrate`, and the check of the stored costs.

use super::Check;
use crate::costs::{self, LoadError};
use crate::environment::Environment;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use serde_json::json;
use uncopy_core::policy::costs::{COSTS, Cost};
use uncopy_core::schema;

/// Measures, stores and prints the costs on this machine.
pub fn main(wants_json: bool) -> u8 {
    let stored =
        costs::measure().map_err(|why| format!("cannot measure the costs: {why}; see 'uncopy doctor'"));
    let stored = stored.and_then(|costs| {
        let path = costs::path(&Environment::inherited())
            .ok_or("cannot store the costs: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
        match costs::store(&path, &costs) {
            Ok(()) => Ok((costs, path)),
            Err(error) => Err(format!("cannot write {}: {}", Quoted(path.as_os_str()), Reason(&error))),
        }
    });
    let (costs, path) = match stored {
        Ok(stored) => stored,
        Err(message) => {
            output::print_message(message);
            return EXIT_FAILURE;
        }
    };
    let each = Cost::ALL.iter().zip(COSTS).map(|(which, spec)| (spec.name, costs.get(*which)));
    let text = if wants_json {
        let costs: serde_json::Map<_, _> = each.map(|(name, ns)| (name.to_owned(), json!(ns))).collect();
        format!(
            "{:#}\n",
            json!({ "schema": schema::CALIBRATION, "costs_ns": costs, "stored": path.to_string_lossy() })
        )
    } else {
        format!(
            "{}\nstored in {}; uncopy run uses these costs from now on\n",
            costs.to_text(),
            path.display()
        )
    };
    output::print(text.as_bytes(), EXIT_OK)
}

/// Checks where `run` gets its costs from.
pub fn check(environment: &Environment) -> Check {
    const NAME: &str = "costs";
    const MEASURED: &str = "measured when a program first needs them";
    if environment.get(costs::VARIABLE.as_bytes()).is_some() {
        return Check::ok(NAME, format!("set by {}", costs::VARIABLE));
    }
    let Some(path) = costs::path(environment) else { return Check::ok(NAME, MEASURED) };
    match costs::load(&path) {
        Ok(_) => Check::ok(NAME, format!("read from {}", path.display())),
        Err(LoadError::Missing) => Check::ok(NAME, MEASURED),
        Err(why) => Check::warning(NAME, format!("{MEASURED}, because {} {why}", path.display()))
            .with_fix("uncopy doctor --calibrate"),
    }
}
