//! Firecracker's published API as a table, for the fake to hold requests to: which there are, when each
//! is allowed, and what its body may hold. Where a field came later than the oldest version that the
//! driver takes, it says when.

use serde_json::{Map, Value};

/// When a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPhase {
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
enum FieldKind {
    Text,
    Flag,
    Number(u64, u64),
    OneOf(&'static [&'static str]),
    Object(&'static [Field]),
    Many(&'static FieldKind),
}

struct Field {
    name: &'static str,
    kind: FieldKind,
    required: bool,
    since: (u32, u32),
}

/// One request.
pub(super) struct ApiOperation {
    method: &'static str,
    path: &'static str,
    pub when: RequestPhase,
    body: &'static [Field],
}

const ANY_NUMBER: u64 = u64::MAX;

const fn required_field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, required: true, since: (0, 0) }
}

const fn optional_field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, required: false, since: (0, 0) }
}

const fn since_version(minor: u32, field: Field) -> Field {
    Field { since: (1, minor), ..field }
}

const fn new_operation(
    method: &'static str,
    path: &'static str,
    when: RequestPhase,
    body: &'static [Field],
) -> ApiOperation {
    ApiOperation { method, path, when, body }
}

const TOKEN_BUCKET_FIELDS: &[Field] = &[
    optional_field("one_time_burst", FieldKind::Number(0, ANY_NUMBER)),
    required_field("refill_time", FieldKind::Number(0, ANY_NUMBER)),
    required_field("size", FieldKind::Number(0, ANY_NUMBER)),
];
const RATE_LIMITER_FIELDS: &[Field] = &[
    optional_field("bandwidth", FieldKind::Object(TOKEN_BUCKET_FIELDS)),
    optional_field("ops", FieldKind::Object(TOKEN_BUCKET_FIELDS)),
];
const REGISTER_MODIFIER_FIELDS: &[Field] = &[
    required_field("register", FieldKind::OneOf(&["eax", "ebx", "ecx", "edx"])),
    required_field("bitmap", FieldKind::Text),
];
const CPUID_MODIFIER_FIELDS: &[Field] = &[
    required_field("leaf", FieldKind::Text),
    required_field("subleaf", FieldKind::Text),
    required_field("flags", FieldKind::Number(0, u32::MAX as u64)),
    required_field("modifiers", FieldKind::Many(&FieldKind::Object(REGISTER_MODIFIER_FIELDS))),
];
const ADDRESS_MODIFIER_FIELDS: &[Field] =
    &[required_field("addr", FieldKind::Text), required_field("bitmap", FieldKind::Text)];
const VCPU_FEATURE_FIELDS: &[Field] = &[
    required_field("index", FieldKind::Number(0, u32::MAX as u64)),
    required_field("bitmap", FieldKind::Text),
];
const CPU_CONFIG_FIELDS: &[Field] = &[
    optional_field("kvm_capabilities", FieldKind::Many(&FieldKind::Text)),
    optional_field("cpuid_modifiers", FieldKind::Many(&FieldKind::Object(CPUID_MODIFIER_FIELDS))),
    optional_field("msr_modifiers", FieldKind::Many(&FieldKind::Object(ADDRESS_MODIFIER_FIELDS))),
    optional_field("reg_modifiers", FieldKind::Many(&FieldKind::Object(ADDRESS_MODIFIER_FIELDS))),
    optional_field("vcpu_features", FieldKind::Many(&FieldKind::Object(VCPU_FEATURE_FIELDS))),
];
const MACHINE_CONFIG_FIELDS: &[Field] = &[
    required_field("vcpu_count", FieldKind::Number(1, 32)),
    required_field("mem_size_mib", FieldKind::Number(1, ANY_NUMBER)),
    optional_field("smt", FieldKind::Flag),
    optional_field("track_dirty_pages", FieldKind::Flag),
    optional_field(
        "cpu_template",
        FieldKind::OneOf(&["C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"]),
    ),
    optional_field("huge_pages", FieldKind::OneOf(&["None", "2M"])),
];
const BOOT_SOURCE_FIELDS: &[Field] = &[
    required_field("kernel_image_path", FieldKind::Text),
    optional_field("initrd_path", FieldKind::Text),
    optional_field("boot_args", FieldKind::Text),
];
const DRIVE_FIELDS: &[Field] = &[
    required_field("drive_id", FieldKind::Text),
    required_field("is_root_device", FieldKind::Flag),
    optional_field("partuuid", FieldKind::Text),
    optional_field("cache_type", FieldKind::OneOf(&["Unsafe", "Writeback"])),
    optional_field("is_read_only", FieldKind::Flag),
    optional_field("path_on_host", FieldKind::Text),
    optional_field("rate_limiter", FieldKind::Object(RATE_LIMITER_FIELDS)),
    optional_field("io_engine", FieldKind::OneOf(&["Sync", "Async"])),
    optional_field("socket", FieldKind::Text),
];
const DRIVE_PATCH_FIELDS: &[Field] = &[
    required_field("drive_id", FieldKind::Text),
    optional_field("path_on_host", FieldKind::Text),
    optional_field("rate_limiter", FieldKind::Object(RATE_LIMITER_FIELDS)),
];
const LOGGER_FIELDS: &[Field] = &[
    optional_field(
        "level",
        FieldKind::OneOf(&["Error", "Warning", "Info", "Debug", "Trace", "Off"]),
    ),
    optional_field("log_path", FieldKind::Text),
    optional_field("show_level", FieldKind::Flag),
    optional_field("show_log_origin", FieldKind::Flag),
    optional_field("module", FieldKind::Text),
];
const VSOCK_FIELDS: &[Field] = &[
    required_field("guest_cid", FieldKind::Number(3, u32::MAX as u64)),
    required_field("uds_path", FieldKind::Text),
    optional_field("vsock_id", FieldKind::Text),
];
const SNAPSHOT_CREATE_FIELDS: &[Field] = &[
    required_field("mem_file_path", FieldKind::Text),
    required_field("snapshot_path", FieldKind::Text),
    optional_field("snapshot_type", FieldKind::OneOf(&["Full", "Diff"])),
];
const MEMORY_BACKEND_FIELDS: &[Field] = &[
    required_field("backend_type", FieldKind::OneOf(&["File", "Uffd"])),
    required_field("backend_path", FieldKind::Text),
];
const NETWORK_OVERRIDE_FIELDS: &[Field] = &[
    required_field("iface_id", FieldKind::Text),
    required_field("host_dev_name", FieldKind::Text),
];
const SNAPSHOT_LOAD_FIELDS: &[Field] = &[
    required_field("snapshot_path", FieldKind::Text),
    optional_field("enable_diff_snapshots", FieldKind::Flag),
    since_version(16, optional_field("track_dirty_pages", FieldKind::Flag)),
    optional_field("mem_file_path", FieldKind::Text),
    optional_field("mem_backend", FieldKind::Object(MEMORY_BACKEND_FIELDS)),
    optional_field("resume_vm", FieldKind::Flag),
    since_version(
        12,
        optional_field(
            "network_overrides",
            FieldKind::Many(&FieldKind::Object(NETWORK_OVERRIDE_FIELDS)),
        ),
    ),
    since_version(
        16,
        optional_field(
            "vsock_override",
            FieldKind::Object(&[required_field("uds_path", FieldKind::Text)]),
        ),
    ),
    since_version(16, optional_field("clock_realtime", FieldKind::Flag)),
];
const ACTION_FIELDS: &[Field] = &[required_field(
    "action_type",
    FieldKind::OneOf(&["FlushMetrics", "InstanceStart", "SendCtrlAltDel"]),
)];
const VM_STATE_FIELDS: &[Field] =
    &[required_field("state", FieldKind::OneOf(&["Paused", "Resumed"]))];

/// The API's operations, except those of network, balloon and hotplug memory, and metadata, which the driver
/// does not use.
const API_OPERATIONS: &[ApiOperation] = &[
    new_operation("GET", "/", RequestPhase::Always, &[]),
    new_operation("GET", "/version", RequestPhase::Always, &[]),
    new_operation("GET", "/machine-config", RequestPhase::Always, &[]),
    new_operation("GET", "/vm/config", RequestPhase::Always, &[]),
    new_operation("PUT", "/logger", RequestPhase::Always, LOGGER_FIELDS),
    new_operation(
        "PUT",
        "/metrics",
        RequestPhase::Always,
        &[required_field("metrics_path", FieldKind::Text)],
    ),
    new_operation("PUT", "/machine-config", RequestPhase::Before, MACHINE_CONFIG_FIELDS),
    new_operation("PATCH", "/machine-config", RequestPhase::Before, MACHINE_CONFIG_FIELDS),
    new_operation("PUT", "/cpu-config", RequestPhase::Before, CPU_CONFIG_FIELDS),
    new_operation("PUT", "/boot-source", RequestPhase::Before, BOOT_SOURCE_FIELDS),
    new_operation("PUT", "/drives/{id}", RequestPhase::Before, DRIVE_FIELDS),
    new_operation("PATCH", "/drives/{id}", RequestPhase::After, DRIVE_PATCH_FIELDS),
    new_operation(
        "PUT",
        "/entropy",
        RequestPhase::Before,
        &[optional_field("rate_limiter", FieldKind::Object(RATE_LIMITER_FIELDS))],
    ),
    new_operation("PUT", "/vsock", RequestPhase::Before, VSOCK_FIELDS),
    new_operation("PUT", "/actions", RequestPhase::Always, ACTION_FIELDS),
    new_operation("PATCH", "/vm", RequestPhase::After, VM_STATE_FIELDS),
    new_operation("PUT", "/snapshot/create", RequestPhase::Paused, SNAPSHOT_CREATE_FIELDS),
    new_operation("PUT", "/snapshot/load", RequestPhase::Fresh, SNAPSHOT_LOAD_FIELDS),
];

/// The request that this is, if its body is as published.
pub(super) fn check_request(
    method: &str,
    path: &str,
    body: &Value,
    version: (u32, u32),
) -> Result<&'static ApiOperation, String> {
    let found = API_OPERATIONS
        .iter()
        .find(|operation| operation.method == method && operation.matches_path(path));
    let operation = found.ok_or_else(|| format!("there is no {method} {path}"))?;
    match body {
        Value::Null if operation.method == "GET" => {}
        Value::Object(fields) => check_object("the body", operation.body, fields, version)?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(format!("the body is {body}"));
        }
    }
    check_field_combinations(operation, path, body)?;
    Ok(operation)
}

/// What one field alone cannot say.
fn check_field_combinations(
    operation: &ApiOperation,
    path: &str,
    body: &Value,
) -> Result<(), String> {
    if operation.path == "/drives/{id}"
        && !path.ends_with(&format!("/{}", text_field(body, "drive_id")))
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

pub(super) fn text_field<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or_default()
}

impl ApiOperation {
    fn matches_path(&self, path: &str) -> bool {
        match self.path.strip_suffix("{id}") {
            None => path == self.path,
            Some(before) => path.strip_prefix(before).is_some_and(is_id),
        }
    }
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_object(
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
        check_value(name, &field.kind, value, version)?;
    }
    let missing = fields.iter().find(|field| field.required && !given.contains_key(field.name));
    missing.map_or(Ok(()), |field| Err(format!("{of} lacks {}", field.name)))
}

fn check_value(
    name: &str,
    kind: &FieldKind,
    value: &Value,
    version: (u32, u32),
) -> Result<(), String> {
    let fits = match (kind, value) {
        (FieldKind::Text, Value::String(_)) | (FieldKind::Flag, Value::Bool(_)) => true,
        (FieldKind::Number(least, most), Value::Number(number)) => {
            number.as_u64().is_some_and(|number| (*least..=*most).contains(&number))
        }
        (FieldKind::OneOf(words), Value::String(word)) => words.contains(&word.as_str()),
        (FieldKind::Object(fields), Value::Object(given)) => {
            return check_object(name, fields, given, version);
        }
        (FieldKind::Many(each), Value::Array(all)) => {
            return all.iter().try_for_each(|one| check_value(name, each, one, version));
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

    fn check_put(path: &str, body: Value) -> Result<(), String> {
        check_request("PUT", path, &body, NEWEST_VERSION).map(drop)
    }

    #[test]
    fn the_table_refuses_what_is_not_published() {
        let drive = json!({ "drive_id": "a", "is_root_device": false, "is_read_only": true,
                            "path_on_host": "a" });
        check_put("/drives/a", drive.clone()).unwrap();
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
            let refused = check_put(path, body.clone()).unwrap_err();
            assert!(refused.contains(reason), "{path} {body}: {refused}");
        }
        assert!(check_request("PUT", "/vsock", &Value::Null, NEWEST_VERSION).is_err());
        assert!(check_request("PUT", "/vsock", &json!([]), NEWEST_VERSION).is_err());
    }

    #[test]
    fn a_field_is_known_from_its_version_on() {
        let body = json!({ "snapshot_path": "s", "track_dirty_pages": true,
                           "mem_backend": { "backend_type": "File", "backend_path": "m" } });
        assert!(check_request("PUT", "/snapshot/load", &body, (1, 16)).is_ok());
        assert!(check_request("PUT", "/snapshot/load", &body, (1, 15)).is_err());
    }
}
