//! Firecracker's published API as a table, for the fake to hold requests to: which there are, when each
//! is allowed, and what its body may hold. Where a field came later than the oldest version that the
//! driver takes, it says when.

use serde_json::{Map, Value};

/// When a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// Until the machine is started.
    Before,
    /// Until anything is configured.
    Fresh,
    /// Once the machine is started.
    After,
    /// While it is stopped.
    Paused,
}

/// What a field holds.
enum Kind {
    Text,
    Flag,
    Number(u64, u64),
    OneOf(&'static [&'static str]),
    Object(&'static [Field]),
    Many(&'static Kind),
}

struct Field {
    name: &'static str,
    kind: Kind,
    required: bool,
    since: (u32, u32),
}

/// One request.
pub(super) struct Operation {
    method: &'static str,
    path: &'static str,
    pub when: When,
    body: &'static [Field],
}

const ANY_NUMBER: u64 = u64::MAX;

const fn must(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: true, since: (0, 0) }
}

const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: false, since: (0, 0) }
}

const fn since(minor: u32, field: Field) -> Field {
    Field { since: (1, minor), ..field }
}

const fn operation(
    method: &'static str,
    path: &'static str,
    when: When,
    body: &'static [Field],
) -> Operation {
    Operation { method, path, when, body }
}

const TOKEN_BUCKET_FIELDS: &[Field] = &[
    may("one_time_burst", Kind::Number(0, ANY_NUMBER)),
    must("refill_time", Kind::Number(0, ANY_NUMBER)),
    must("size", Kind::Number(0, ANY_NUMBER)),
];
const RATE_LIMITER_FIELDS: &[Field] = &[
    may("bandwidth", Kind::Object(TOKEN_BUCKET_FIELDS)),
    may("ops", Kind::Object(TOKEN_BUCKET_FIELDS)),
];
const REGISTER_MODIFIER_FIELDS: &[Field] =
    &[must("register", Kind::OneOf(&["eax", "ebx", "ecx", "edx"])), must("bitmap", Kind::Text)];
const CPUID_MODIFIER_FIELDS: &[Field] = &[
    must("leaf", Kind::Text),
    must("subleaf", Kind::Text),
    must("flags", Kind::Number(0, u32::MAX as u64)),
    must("modifiers", Kind::Many(&Kind::Object(REGISTER_MODIFIER_FIELDS))),
];
const ADDRESS_MODIFIER_FIELDS: &[Field] = &[must("addr", Kind::Text), must("bitmap", Kind::Text)];
const VCPU_FEATURE_FIELDS: &[Field] =
    &[must("index", Kind::Number(0, u32::MAX as u64)), must("bitmap", Kind::Text)];
const CPU_CONFIG_FIELDS: &[Field] = &[
    may("kvm_capabilities", Kind::Many(&Kind::Text)),
    may("cpuid_modifiers", Kind::Many(&Kind::Object(CPUID_MODIFIER_FIELDS))),
    may("msr_modifiers", Kind::Many(&Kind::Object(ADDRESS_MODIFIER_FIELDS))),
    may("reg_modifiers", Kind::Many(&Kind::Object(ADDRESS_MODIFIER_FIELDS))),
    may("vcpu_features", Kind::Many(&Kind::Object(VCPU_FEATURE_FIELDS))),
];
const MACHINE_CONFIG_FIELDS: &[Field] = &[
    must("vcpu_count", Kind::Number(1, 32)),
    must("mem_size_mib", Kind::Number(1, ANY_NUMBER)),
    may("smt", Kind::Flag),
    may("track_dirty_pages", Kind::Flag),
    may("cpu_template", Kind::OneOf(&["C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"])),
    may("huge_pages", Kind::OneOf(&["None", "2M"])),
];
const BOOT_SOURCE_FIELDS: &[Field] = &[
    must("kernel_image_path", Kind::Text),
    may("initrd_path", Kind::Text),
    may("boot_args", Kind::Text),
];
const DRIVE_FIELDS: &[Field] = &[
    must("drive_id", Kind::Text),
    must("is_root_device", Kind::Flag),
    may("partuuid", Kind::Text),
    may("cache_type", Kind::OneOf(&["Unsafe", "Writeback"])),
    may("is_read_only", Kind::Flag),
    may("path_on_host", Kind::Text),
    may("rate_limiter", Kind::Object(RATE_LIMITER_FIELDS)),
    may("io_engine", Kind::OneOf(&["Sync", "Async"])),
    may("socket", Kind::Text),
];
const DRIVE_PATCH_FIELDS: &[Field] = &[
    must("drive_id", Kind::Text),
    may("path_on_host", Kind::Text),
    may("rate_limiter", Kind::Object(RATE_LIMITER_FIELDS)),
];
const LOGGER_FIELDS: &[Field] = &[
    may("level", Kind::OneOf(&["Error", "Warning", "Info", "Debug", "Trace", "Off"])),
    may("log_path", Kind::Text),
    may("show_level", Kind::Flag),
    may("show_log_origin", Kind::Flag),
    may("module", Kind::Text),
];
const VSOCK_FIELDS: &[Field] = &[
    must("guest_cid", Kind::Number(3, u32::MAX as u64)),
    must("uds_path", Kind::Text),
    may("vsock_id", Kind::Text),
];
const SNAPSHOT_CREATE_FIELDS: &[Field] = &[
    must("mem_file_path", Kind::Text),
    must("snapshot_path", Kind::Text),
    may("snapshot_type", Kind::OneOf(&["Full", "Diff"])),
];
const MEMORY_BACKEND_FIELDS: &[Field] =
    &[must("backend_type", Kind::OneOf(&["File", "Uffd"])), must("backend_path", Kind::Text)];
const NETWORK_OVERRIDE_FIELDS: &[Field] =
    &[must("iface_id", Kind::Text), must("host_dev_name", Kind::Text)];
const SNAPSHOT_LOAD_FIELDS: &[Field] = &[
    must("snapshot_path", Kind::Text),
    may("enable_diff_snapshots", Kind::Flag),
    since(16, may("track_dirty_pages", Kind::Flag)),
    may("mem_file_path", Kind::Text),
    may("mem_backend", Kind::Object(MEMORY_BACKEND_FIELDS)),
    may("resume_vm", Kind::Flag),
    since(12, may("network_overrides", Kind::Many(&Kind::Object(NETWORK_OVERRIDE_FIELDS)))),
    since(16, may("vsock_override", Kind::Object(&[must("uds_path", Kind::Text)]))),
    since(16, may("clock_realtime", Kind::Flag)),
];
const ACTION_FIELDS: &[Field] =
    &[must("action_type", Kind::OneOf(&["FlushMetrics", "InstanceStart", "SendCtrlAltDel"]))];
const VM_STATE_FIELDS: &[Field] = &[must("state", Kind::OneOf(&["Paused", "Resumed"]))];

/// The API's operations, except those of network, balloon and hotplug memory, and metadata, which the driver
/// does not use.
const API_OPERATIONS: &[Operation] = &[
    operation("GET", "/", When::Always, &[]),
    operation("GET", "/version", When::Always, &[]),
    operation("GET", "/machine-config", When::Always, &[]),
    operation("GET", "/vm/config", When::Always, &[]),
    operation("PUT", "/logger", When::Always, LOGGER_FIELDS),
    operation("PUT", "/metrics", When::Always, &[must("metrics_path", Kind::Text)]),
    operation("PUT", "/machine-config", When::Before, MACHINE_CONFIG_FIELDS),
    operation("PATCH", "/machine-config", When::Before, MACHINE_CONFIG_FIELDS),
    operation("PUT", "/cpu-config", When::Before, CPU_CONFIG_FIELDS),
    operation("PUT", "/boot-source", When::Before, BOOT_SOURCE_FIELDS),
    operation("PUT", "/drives/{id}", When::Before, DRIVE_FIELDS),
    operation("PATCH", "/drives/{id}", When::After, DRIVE_PATCH_FIELDS),
    operation(
        "PUT",
        "/entropy",
        When::Before,
        &[may("rate_limiter", Kind::Object(RATE_LIMITER_FIELDS))],
    ),
    operation("PUT", "/vsock", When::Before, VSOCK_FIELDS),
    operation("PUT", "/actions", When::Always, ACTION_FIELDS),
    operation("PATCH", "/vm", When::After, VM_STATE_FIELDS),
    operation("PUT", "/snapshot/create", When::Paused, SNAPSHOT_CREATE_FIELDS),
    operation("PUT", "/snapshot/load", When::Fresh, SNAPSHOT_LOAD_FIELDS),
];

/// The request that this is, if its body is as published.
pub(super) fn check(
    method: &str,
    path: &str,
    body: &Value,
    version: (u32, u32),
) -> Result<&'static Operation, String> {
    let found =
        API_OPERATIONS.iter().find(|operation| operation.method == method && operation.is(path));
    let operation = found.ok_or_else(|| format!("there is no {method} {path}"))?;
    match body {
        Value::Null if operation.method == "GET" => {}
        Value::Object(fields) => object("the body", operation.body, fields, version)?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(format!("the body is {body}"));
        }
    }
    check_field_combinations(operation, path, body)?;
    Ok(operation)
}

/// What one field alone cannot say.
fn check_field_combinations(operation: &Operation, path: &str, body: &Value) -> Result<(), String> {
    if operation.path == "/drives/{id}" && !path.ends_with(&format!("/{}", text(body, "drive_id")))
    {
        return Err("drive_id is another than in the path".into());
    }
    if (operation.method, operation.path) == ("PUT", "/drives/{id}") {
        let file = !body["path_on_host"].is_null() && !body["is_read_only"].is_null();
        let socket = !body["socket"].is_null();
        if file == socket {
            return Err("a drive is either a file with is_read_only or a socket".into());
        }
    }
    if operation.path == "/snapshot/load"
        && body["mem_backend"].is_null() == body["mem_file_path"].is_null()
    {
        return Err("exactly one of mem_backend and mem_file_path".into());
    }
    Ok(())
}

pub(super) fn text<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or_default()
}

impl Operation {
    fn is(&self, path: &str) -> bool {
        match self.path.strip_suffix("{id}") {
            None => path == self.path,
            Some(before) => path.strip_prefix(before).is_some_and(is_id),
        }
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn object(
    of: &str,
    fields: &[Field],
    given: &Map<String, Value>,
    version: (u32, u32),
) -> Result<(), String> {
    for (name, value) in given {
        let field = fields.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("{of} has no field {name}"))?;
        if field.since > version {
            return Err(format!("{name} came with {:?}, and this is {version:?}", field.since));
        }
        kind(name, &field.kind, value, version)?;
    }
    let missing = fields.iter().find(|field| field.required && !given.contains_key(field.name));
    missing.map_or(Ok(()), |field| Err(format!("{of} lacks {}", field.name)))
}

fn kind(name: &str, kind: &Kind, value: &Value, version: (u32, u32)) -> Result<(), String> {
    let fits = match (kind, value) {
        (Kind::Text, Value::String(_)) | (Kind::Flag, Value::Bool(_)) => true,
        (Kind::Number(least, most), Value::Number(number)) => {
            number.as_u64().is_some_and(|number| (*least..=*most).contains(&number))
        }
        (Kind::OneOf(words), Value::String(word)) => words.contains(&word.as_str()),
        (Kind::Object(fields), Value::Object(given)) => {
            return object(name, fields, given, version);
        }
        (Kind::Many(each), Value::Array(all)) => {
            return all.iter().try_for_each(|one| self::kind(name, each, one, version));
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("{name} cannot be {value}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NEWEST_VERSION: (u32, u32) = (1, 17);

    fn put(path: &str, body: Value) -> Result<(), String> {
        check("PUT", path, &body, NEWEST_VERSION).map(drop)
    }

    #[test]
    fn the_table_refuses_what_is_not_published() {
        let drive = json!({ "drive_id": "a", "is_root_device": false, "is_read_only": true,
                            "path_on_host": "a" });
        put("/drives/a", drive.clone()).unwrap();
        let wrong: [(&str, Value, &str); 11] = [
            ("/drive/a", drive.clone(), "there is no"),
            ("/drives/a/b", drive.clone(), "there is no"),
            ("/drives/b", drive, "another than in the path"),
            ("/drives/a", json!({ "drive_id": "a", "is_root_device": false }), "either"),
            ("/vsock", json!({ "guest_cid": 2, "uds_path": "v" }), "guest_cid cannot be 2"),
            ("/vsock", json!({ "guest_cid": 3 }), "lacks uds_path"),
            ("/vsock", json!({ "guest_cid": "3", "uds_path": "v" }), "guest_cid cannot be"),
            ("/actions", json!({ "action_type": "Halt" }), "action_type cannot be"),
            ("/boot-source", json!({ "kernel_image_path": "k", "args": "" }), "no field args"),
            ("/snapshot/load", json!({ "snapshot_path": "s" }), "exactly one"),
            ("/vm", json!({ "state": "Paused" }), "there is no PUT /vm"),
        ];
        for (path, body, reason) in wrong {
            let refused = put(path, body.clone()).unwrap_err();
            assert!(refused.contains(reason), "{path} {body}: {refused}");
        }
        assert!(check("PUT", "/vsock", &Value::Null, NEWEST_VERSION).is_err());
        assert!(check("PUT", "/vsock", &json!([]), NEWEST_VERSION).is_err());
    }

    #[test]
    fn a_field_is_known_from_its_version_on() {
        let body = json!({ "snapshot_path": "s", "track_dirty_pages": true,
                           "mem_backend": { "backend_type": "File", "backend_path": "m" } });
        assert!(check("PUT", "/snapshot/load", &body, (1, 16)).is_ok());
        assert!(check("PUT", "/snapshot/load", &body, (1, 15)).is_err());
    }
}
