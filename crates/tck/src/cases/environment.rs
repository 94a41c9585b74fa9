//! The environment of a program (C-03, C-17).

use serde_json::{Map, Value, json};

use crate::case::{case, check, same};
use crate::kit::probe_command;
use crate::{Case, Kit, Stop, Verdict};

pub(super) const ENVIRONMENT_CASES: &[Case] = &[
    case!("no variable of the host reaches a program", "C-03", check_host_variables_absent)
        .isolation(),
    case!("a program finds a search path", "C-03", search_path),
    case!(
        "variables of the sandbox and of the command arrive, the command's winning",
        "C-03",
        check_given_variables
    ),
    case!("values of variables arrive exactly as they were given", "C-03", odd_values),
];

/// Environment variables a backend may set by itself; the host's values of them are no secret.
const BACKEND_SET_VARIABLES: [&str; 10] =
    ["PATH", "HOME", "TMPDIR", "LANG", "TERM", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME"];

fn extract_environment(facts: &Value) -> Verdict<&Map<String, Value>> {
    facts["environment"]
        .as_object()
        .ok_or_else(|| Stop::failed("expected an environment, saw none"))
}

async fn check_host_variables_absent(kit: Kit) -> Verdict {
    let facts = kit.facts(["report"]).await?;
    let inside = extract_environment(&facts)?;
    let foreign = |name: &str| !BACKEND_SET_VARIABLES.contains(&name) && inside.contains_key(name);
    let leaked: Vec<_> =
        std::env::vars().map(|(name, _)| name).filter(|name| foreign(name)).collect();
    check!(leaked.is_empty(), "expected none of the host's variables, saw {leaked:?}");
    Ok(())
}

async fn search_path(kit: Kit) -> Verdict {
    let facts = kit.facts(["report"]).await?;
    let path = extract_environment(&facts)?.get("PATH").and_then(Value::as_str).unwrap_or_default();
    let absolute = !path.is_empty() && path.split(':').all(|part| part.starts_with('/'));
    check!(absolute, "expected absolute directories in PATH, saw {path:?}");
    Ok(())
}

async fn check_given_variables(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.env.insert("OF_SANDBOX".parse()?, "sandbox".into());
    spec.env.insert("OF_BOTH".parse()?, "sandbox".into());
    let mut command = probe_command(["report"]);
    command.env.insert("OF_BOTH".parse()?, "command".into());
    command.env.insert("OF_COMMAND".parse()?, "command".into());
    let facts = kit.run_with(spec, command).await?.facts()?;
    let inside = extract_environment(&facts)?;
    for (name, value) in
        [("OF_SANDBOX", "sandbox"), ("OF_BOTH", "command"), ("OF_COMMAND", "command")]
    {
        same!(name, inside.get(name), Some(&json!(value)));
    }
    Ok(())
}

async fn odd_values(kit: Kit) -> Verdict {
    let values = ["", " ", "a=b", "new\nline", "$HOME `x`", "é漢", "\"'\\"];
    let mut command = probe_command(["report"]);
    for (number, value) in values.iter().enumerate() {
        command.env.insert(format!("ODD_{number}").parse()?, (*value).to_owned());
    }
    let facts = kit.run_with(kit.spec(), command).await?.facts()?;
    for (number, value) in values.iter().enumerate() {
        let name = format!("ODD_{number}");
        same!(&name, extract_environment(&facts)?.get(&name), Some(&json!(value)));
    }
    Ok(())
}
