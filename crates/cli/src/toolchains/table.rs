//! The toolchains that are known, as data: where each lives, what of it a guest may read, and which variables
//! it needs. A tree that is not listed is never shown; what is listed holds programs, libraries and versions.
//! Before a row is added, a real installation is searched for files in which its users keep credentials.

/// One toolchain, or one manager of several.
pub struct Toolchain {
    /// What `--toolchain` takes, and what records say.
    pub name: &'static str,
    /// The language it is for, which `--toolchain` takes as well.
    pub language: &'static str,
    /// Where it lives. A PATH that leads into a root recognises it.
    pub roots: &'static [ToolchainRoot],
    /// The variables it needs inside.
    pub variables: &'static [(&'static str, VariableValue)],
}

impl Toolchain {
    /// Whether `--toolchain` means it by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.language == name
    }
}

/// One directory of a toolchain.
pub struct ToolchainRoot {
    /// The variable that names it.
    pub variable: Option<&'static str>,
    /// Where it is otherwise, the first that exists. `~` is the home; a final `*` is any name PATH has there.
    pub defaults: &'static [&'static str],
    /// What of it is shown, from the root; `*` is any one name and `.` the root itself.
    pub shown: &'static [&'static str],
    /// Names in it that are never shown, beside those of [`NEVER_SHOWN`].
    pub never: &'static [&'static str],
    /// How deep in those trees names are looked at: deeper lie packages, which hold no user's configuration.
    pub depth: usize,
    /// What has to be in it: it is something else without.
    pub marks: &'static [&'static str],
    /// Whether only those of `shown` count into which PATH leads: the one version in use of many.
    pub in_path_only: bool,
    /// What is shown in the home directory inside as well, from the root, with its place from there and how deep
    /// names are looked at. Left out where the network is open: it is what would otherwise be downloaded, and
    /// cannot be written to.
    pub in_home: &'static [(&'static str, &'static str, usize)],
}

/// Where a variable's value comes from.
pub enum VariableValue {
    /// The path of this root.
    Root(usize),
    /// The caller's value, if it is a path that is shown.
    ShownPath,
    /// The caller's value, if it is a plain word such as a version.
    Word,
    /// A `file:` address of this path from a root, if it is shown, and then what Go asks besides.
    GoProxy(usize, &'static str),
}

/// Names of files and directories that may hold credentials: never shown, in any tree.
pub const NEVER_SHOWN: &[&str] = &[
    "credentials.toml",
    "credentials",
    "credentials.json",
    ".credentials",
    ".npmrc",
    "npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    "pip.conf",
    ".condarc",
    "condarc",
    ".netrc",
    "_netrc",
    ".git",
    ".git-credentials",
    ".gitconfig",
    ".ssh",
    ".gnupg",
    ".aws",
    ".docker",
    ".env",
    "auth.json",
    "auth.toml",
    "settings.xml",
    "settings-security.xml",
    "gradle.properties",
    "uv-receipt.toml",
    ".mambarc",
    "bunfig.toml",
    ".bunfig.toml",
    ".pgpass",
    ".my.cnf",
    ".terraformrc",
    ".terraform.d",
    ".kube",
    ".m2",
    ".config",
    "jmxremote.password",
    "tomcat-users.xml",
];

/// A root with nothing but its trees.
const PLAIN_ROOT: ToolchainRoot = ToolchainRoot {
    variable: None,
    defaults: &[],
    shown: &[],
    never: &[],
    depth: 2,
    marks: &[],
    in_path_only: false,
    in_home: &[],
};

/// A root that holds installations of others, each with a configuration of its own somewhere below.
const NESTED_ROOT: ToolchainRoot = ToolchainRoot { never: &["etc"], depth: 5, ..PLAIN_ROOT };

/// A root with tools of every kind: some keep a database, downloads or a configuration in their installation.
const INSTALLS_ROOT: ToolchainRoot = ToolchainRoot {
    never: &["etc", "var", "data", "packages", "git", "registry", "config", "config.toml"],
    ..NESTED_ROOT
};

pub const KNOWN_TOOLCHAINS: &[Toolchain] = &[
    Toolchain {
        name: "rust",
        language: "rust",
        roots: &[
            // Never all of it: `credentials.toml` and a `config.toml` with tokens lie beside. Without
            // CARGO_HOME cargo takes one below the home directory inside, which it can write to.
            ToolchainRoot {
                variable: Some("CARGO_HOME"),
                defaults: &["~/.cargo"],
                shown: &["bin"],
                in_home: &[
                    ("registry/cache", ".cargo/registry/cache", 0),
                    ("registry/index", ".cargo/registry/index", 2),
                    ("registry/src", ".cargo/registry/src", 0),
                ],
                ..PLAIN_ROOT
            },
            ToolchainRoot {
                variable: Some("RUSTUP_HOME"),
                defaults: &["~/.rustup"],
                // It makes the last where that is missing.
                shown: &["toolchains", "settings.toml", "update-hashes"],
                ..PLAIN_ROOT
            },
        ],
        variables: &[
            ("RUSTUP_HOME", VariableValue::Root(1)),
            ("RUSTUP_TOOLCHAIN", VariableValue::Word),
        ],
    },
    Toolchain {
        name: "nvm",
        language: "node",
        // Not `etc`, where npm keeps its global configuration with tokens.
        roots: &[ToolchainRoot {
            variable: Some("NVM_DIR"),
            defaults: &["~/.nvm", "~/.config/nvm"],
            shown: &[
                "versions/node/*/bin",
                "versions/node/*/lib",
                "versions/node/*/include",
                "versions/node/*/share",
            ],
            in_path_only: true,
            ..PLAIN_ROOT
        }],
        variables: &[("NVM_DIR", VariableValue::Root(0)), ("NVM_BIN", VariableValue::ShownPath)],
    },
    Toolchain {
        name: "fnm",
        language: "node",
        roots: &[ToolchainRoot {
            variable: Some("FNM_DIR"),
            defaults: &["~/.local/share/fnm", "~/.fnm"],
            shown: &[
                "node-versions/*/installation/bin",
                "node-versions/*/installation/lib",
                "node-versions/*/installation/include",
                "node-versions/*/installation/share",
            ],
            in_path_only: true,
            ..PLAIN_ROOT
        }],
        variables: &[],
    },
    Toolchain {
        name: "volta",
        language: "node",
        roots: &[ToolchainRoot {
            variable: Some("VOLTA_HOME"),
            defaults: &["~/.volta"],
            shown: &["bin", "tools"],
            ..NESTED_ROOT
        }],
        variables: &[("VOLTA_HOME", VariableValue::Root(0))],
    },
    Toolchain {
        name: "bun",
        language: "bun",
        roots: &[ToolchainRoot {
            variable: Some("BUN_INSTALL"),
            defaults: &["~/.bun"],
            shown: &["bin"],
            ..PLAIN_ROOT
        }],
        variables: &[],
    },
    Toolchain {
        name: "deno",
        language: "deno",
        roots: &[ToolchainRoot { defaults: &["~/.deno"], shown: &["bin"], ..PLAIN_ROOT }],
        variables: &[],
    },
    Toolchain {
        name: "pyenv",
        language: "python",
        roots: &[ToolchainRoot {
            variable: Some("PYENV_ROOT"),
            defaults: &["~/.pyenv"],
            shown: &[
                "bin",
                "shims",
                "libexec",
                "plugins/*/bin",
                "plugins/*/libexec",
                "plugins/*/share",
                "plugins/*/shims",
                "pyenv.d",
                "version",
                "versions",
            ],
            ..NESTED_ROOT
        }],
        variables: &[
            ("PYENV_ROOT", VariableValue::Root(0)),
            ("PYENV_VERSION", VariableValue::Word),
        ],
    },
    Toolchain {
        name: "uv",
        language: "python",
        roots: &[
            // Programs of its own alone: the directory is everybody's.
            ToolchainRoot { defaults: &["~/.local/bin"], shown: &["uv", "uvx"], ..PLAIN_ROOT },
            ToolchainRoot {
                variable: Some("UV_PYTHON_INSTALL_DIR"),
                defaults: &["~/.local/share/uv/python"],
                shown: &["."],
                ..PLAIN_ROOT
            },
        ],
        variables: &[("UV_PYTHON_INSTALL_DIR", VariableValue::Root(1))],
    },
    Toolchain {
        name: "conda",
        language: "python",
        // Not `pkgs` and `conda-meta`, which note addresses of channels with their tokens.
        roots: &[ToolchainRoot {
            variable: Some("MAMBA_ROOT_PREFIX"),
            defaults: &[
                "~/miniconda3",
                "~/anaconda3",
                "~/miniforge3",
                "~/mambaforge",
                "~/micromamba",
                "/opt/conda",
                "/opt/miniconda3",
                "/opt/miniforge3",
            ],
            shown: &[
                "bin",
                "condabin",
                "lib",
                "libexec",
                "include",
                "share",
                "ssl",
                "compiler_compat",
                "x86_64-conda-linux-gnu",
                "aarch64-conda-linux-gnu",
                "envs",
            ],
            never: &["conda-meta", "etc"],
            ..PLAIN_ROOT
        }],
        variables: &[
            ("CONDA_PREFIX", VariableValue::ShownPath),
            ("CONDA_EXE", VariableValue::ShownPath),
            ("CONDA_PYTHON_EXE", VariableValue::ShownPath),
            ("CONDA_DEFAULT_ENV", VariableValue::Word),
        ],
    },
    Toolchain {
        name: "go",
        language: "go",
        roots: &[
            ToolchainRoot {
                variable: Some("GOROOT"),
                defaults: &["/usr/local/go", "~/.local/go", "~/.go", "~/sdk/*"],
                shown: &["bin", "lib", "pkg", "src", "misc", "api", "go.env", "VERSION"],
                marks: &["VERSION", "pkg/tool", "src/runtime"],
                // One that is a GOPATH too has modules and clones in it.
                never: &["mod"],
                ..PLAIN_ROOT
            },
            // Of the modules only what a proxy serves: beside it lie clones with their addresses.
            ToolchainRoot {
                variable: Some("GOPATH"),
                defaults: &["~/go"],
                shown: &["bin", "pkg/mod/cache/download"],
                depth: 1,
                ..PLAIN_ROOT
            },
        ],
        variables: &[
            ("GOROOT", VariableValue::ShownPath),
            ("GOPROXY", VariableValue::GoProxy(1, "pkg/mod/cache/download")),
        ],
    },
    Toolchain {
        name: "java",
        language: "java",
        roots: &[ToolchainRoot {
            variable: Some("JAVA_HOME"),
            defaults: &["~/.jdks/*"],
            shown: &["bin", "conf", "include", "jmods", "jre", "legal", "lib", "release"],
            ..PLAIN_ROOT
        }],
        variables: &[("JAVA_HOME", VariableValue::ShownPath)],
    },
    Toolchain {
        name: "sdkman",
        language: "java",
        roots: &[ToolchainRoot {
            variable: Some("SDKMAN_DIR"),
            defaults: &["~/.sdkman"],
            // Not those that are servers, which are configured where they lie.
            shown: &[
                "candidates/java/*",
                "candidates/maven/*",
                "candidates/mvnd/*",
                "candidates/gradle/*",
                "candidates/kotlin/*",
                "candidates/groovy/*",
                "candidates/scala/*",
                "candidates/scalacli/*",
                "candidates/sbt/*",
                "candidates/ant/*",
                "candidates/jbang/*",
                "candidates/leiningen/*",
            ],
            never: &["etc", "init.d"],
            depth: 3,
            in_path_only: true,
            ..PLAIN_ROOT
        }],
        variables: &[
            ("SDKMAN_DIR", VariableValue::Root(0)),
            ("JAVA_HOME", VariableValue::ShownPath),
            ("MAVEN_HOME", VariableValue::ShownPath),
            ("GRADLE_HOME", VariableValue::ShownPath),
        ],
    },
    Toolchain {
        name: "rbenv",
        language: "ruby",
        roots: &[ToolchainRoot {
            variable: Some("RBENV_ROOT"),
            defaults: &["~/.rbenv"],
            shown: &[
                "bin",
                "shims",
                "libexec",
                "plugins/*/bin",
                "plugins/*/share",
                "rbenv.d",
                "version",
                "versions",
            ],
            ..NESTED_ROOT
        }],
        variables: &[
            ("RBENV_ROOT", VariableValue::Root(0)),
            ("RBENV_VERSION", VariableValue::Word),
        ],
    },
    Toolchain {
        name: "mise",
        language: "mise",
        // Not its configuration, which sets variables.
        roots: &[
            ToolchainRoot {
                variable: Some("MISE_DATA_DIR"),
                defaults: &["~/.local/share/mise"],
                shown: &["installs", "shims"],
                ..INSTALLS_ROOT
            },
            ToolchainRoot { defaults: &["~/.local/bin"], shown: &["mise"], ..PLAIN_ROOT },
        ],
        variables: &[("MISE_DATA_DIR", VariableValue::Root(0))],
    },
    Toolchain {
        name: "asdf",
        language: "asdf",
        roots: &[ToolchainRoot {
            variable: Some("ASDF_DATA_DIR"),
            defaults: &["~/.asdf"],
            shown: &["bin", "shims", "libexec", "lib", "plugins/*/bin", "installs", "asdf.sh"],
            ..INSTALLS_ROOT
        }],
        variables: &[
            ("ASDF_DATA_DIR", VariableValue::Root(0)),
            ("ASDF_DIR", VariableValue::ShownPath),
        ],
    },
    Toolchain {
        name: "homebrew",
        language: "homebrew",
        // Not `etc` and `var`, which are its services'.
        roots: &[ToolchainRoot {
            variable: Some("HOMEBREW_PREFIX"),
            defaults: &["/home/linuxbrew/.linuxbrew", "~/.linuxbrew"],
            shown: &["bin", "sbin", "lib", "libexec", "include", "share", "opt", "Cellar"],
            ..NESTED_ROOT
        }],
        variables: &[
            ("HOMEBREW_PREFIX", VariableValue::Root(0)),
            ("HOMEBREW_CELLAR", VariableValue::ShownPath),
        ],
    },
    Toolchain {
        name: "opt",
        language: "opt",
        roots: &[ToolchainRoot {
            defaults: &["/opt/*"],
            shown: &[
                "bin", "sbin", "lib", "lib64", "libexec", "include", "share", "jmods", "jre",
                "legal", "release",
            ],
            ..PLAIN_ROOT
        }],
        variables: &[
            ("JAVA_HOME", VariableValue::ShownPath),
            ("MAVEN_HOME", VariableValue::ShownPath),
        ],
    },
];
