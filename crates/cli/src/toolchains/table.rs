//! The toolchains that are known, as data: where each lives, what of it a guest may read, and which variables
//! it needs. A tree that is not listed is never shown; what is listed holds programs, libraries and versions.
//! Whoever adds a row looks through a real installation for files in which its users keep credentials.

/// One toolchain, or one manager of several.
pub struct Toolchain {
    /// What `--toolchain` takes, and what records say.
    pub name: &'static str,
    /// The language it is for, which `--toolchain` takes as well.
    pub language: &'static str,
    /// Where it lives. A PATH that leads into a root recognises it.
    pub roots: &'static [Root],
    /// The variables it needs inside.
    pub variables: &'static [(&'static str, Value)],
}

impl Toolchain {
    /// Whether `--toolchain` means it by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.language == name
    }
}

/// One directory of a toolchain.
pub struct Root {
    /// The variable that names it.
    pub variable: Option<&'static str>,
    /// Where it is otherwise, the first that exists. `~` is the home; a `*` at the end is whatever PATH has there.
    pub defaults: &'static [&'static str],
    /// What of it is shown, from the root; `*` is any one name and `.` the root itself.
    pub shown: &'static [&'static str],
    /// Names in it that are never shown, beside those of [`NEVER_SHOWN`].
    pub never: &'static [&'static str],
    /// How deep in those trees names are looked at: deeper lie packages, which are nobody's configuration.
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
pub enum Value {
    /// The path of this root.
    Root(usize),
    /// The caller's value, if it is a path that is shown.
    ShownPath,
    /// The caller's value, if it is a plain word such as a version.
    Word,
    /// A `file:` address of this path from a root, if it is shown, and then what Go asks besides.
    GoProxy(usize, &'static str),
}

/// Names of files and directories that may hold credentials: never shown, in whatever tree they lie.
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
const PLAIN_ROOT: Root = Root {
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
const NESTED_ROOT: Root = Root { never: &["etc"], depth: 5, ..PLAIN_ROOT };

/// A root with tools of every kind: some keep a database, downloads or a configuration in their installation.
const INSTALLS_ROOT: Root = Root {
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
            Root {
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
            Root {
                variable: Some("RUSTUP_HOME"),
                defaults: &["~/.rustup"],
                // It makes the last where that is missing.
                shown: &["toolchains", "settings.toml", "update-hashes"],
                ..PLAIN_ROOT
            },
        ],
        variables: &[("RUSTUP_HOME", Value::Root(1)), ("RUSTUP_TOOLCHAIN", Value::Word)],
    },
    Toolchain {
        name: "nvm",
        language: "node",
        // Not `etc`, where npm keeps its global configuration with tokens.
        roots: &[Root {
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
        variables: &[("NVM_DIR", Value::Root(0)), ("NVM_BIN", Value::ShownPath)],
    },
    Toolchain {
        name: "fnm",
        language: "node",
        roots: &[Root {
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
        roots: &[Root {
            variable: Some("VOLTA_HOME"),
            defaults: &["~/.volta"],
            shown: &["bin", "tools"],
            ..NESTED_ROOT
        }],
        variables: &[("VOLTA_HOME", Value::Root(0))],
    },
    Toolchain {
        name: "bun",
        language: "bun",
        roots: &[Root {
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
        roots: &[Root { defaults: &["~/.deno"], shown: &["bin"], ..PLAIN_ROOT }],
        variables: &[],
    },
    Toolchain {
        name: "pyenv",
        language: "python",
        roots: &[Root {
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
        variables: &[("PYENV_ROOT", Value::Root(0)), ("PYENV_VERSION", Value::Word)],
    },
    Toolchain {
        name: "uv",
        language: "python",
        roots: &[
            // Programs of its own alone: the directory is everybody's.
            Root { defaults: &["~/.local/bin"], shown: &["uv", "uvx"], ..PLAIN_ROOT },
            Root {
                variable: Some("UV_PYTHON_INSTALL_DIR"),
                defaults: &["~/.local/share/uv/python"],
                shown: &["."],
                ..PLAIN_ROOT
            },
        ],
        variables: &[("UV_PYTHON_INSTALL_DIR", Value::Root(1))],
    },
    Toolchain {
        name: "conda",
        language: "python",
        // Not `pkgs` and `conda-meta`, which note addresses of channels with their tokens.
        roots: &[Root {
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
            ("CONDA_PREFIX", Value::ShownPath),
            ("CONDA_EXE", Value::ShownPath),
            ("CONDA_PYTHON_EXE", Value::ShownPath),
            ("CONDA_DEFAULT_ENV", Value::Word),
        ],
    },
    Toolchain {
        name: "go",
        language: "go",
        roots: &[
            Root {
                variable: Some("GOROOT"),
                defaults: &["/usr/local/go", "~/.local/go", "~/.go", "~/sdk/*"],
                shown: &["bin", "lib", "pkg", "src", "misc", "api", "go.env", "VERSION"],
                marks: &["VERSION", "pkg/tool", "src/runtime"],
                // One that is a GOPATH too has modules and clones in it.
                never: &["mod"],
                ..PLAIN_ROOT
            },
            // Of the modules only what a proxy serves: beside it lie clones with their addresses.
            Root {
                variable: Some("GOPATH"),
                defaults: &["~/go"],
                shown: &["bin", "pkg/mod/cache/download"],
                depth: 1,
                ..PLAIN_ROOT
            },
        ],
        variables: &[
            ("GOROOT", Value::ShownPath),
            ("GOPROXY", Value::GoProxy(1, "pkg/mod/cache/download")),
        ],
    },
    Toolchain {
        name: "java",
        language: "java",
        roots: &[Root {
            variable: Some("JAVA_HOME"),
            defaults: &["~/.jdks/*"],
            shown: &["bin", "conf", "include", "jmods", "jre", "legal", "lib", "release"],
            ..PLAIN_ROOT
        }],
        variables: &[("JAVA_HOME", Value::ShownPath)],
    },
    Toolchain {
        name: "sdkman",
        language: "java",
        roots: &[Root {
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
            ("SDKMAN_DIR", Value::Root(0)),
            ("JAVA_HOME", Value::ShownPath),
            ("MAVEN_HOME", Value::ShownPath),
            ("GRADLE_HOME", Value::ShownPath),
        ],
    },
    Toolchain {
        name: "rbenv",
        language: "ruby",
        roots: &[Root {
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
        variables: &[("RBENV_ROOT", Value::Root(0)), ("RBENV_VERSION", Value::Word)],
    },
    Toolchain {
        name: "mise",
        language: "mise",
        // Not its configuration, which sets variables.
        roots: &[
            Root {
                variable: Some("MISE_DATA_DIR"),
                defaults: &["~/.local/share/mise"],
                shown: &["installs", "shims"],
                ..INSTALLS_ROOT
            },
            Root { defaults: &["~/.local/bin"], shown: &["mise"], ..PLAIN_ROOT },
        ],
        variables: &[("MISE_DATA_DIR", Value::Root(0))],
    },
    Toolchain {
        name: "asdf",
        language: "asdf",
        roots: &[Root {
            variable: Some("ASDF_DATA_DIR"),
            defaults: &["~/.asdf"],
            shown: &["bin", "shims", "libexec", "lib", "plugins/*/bin", "installs", "asdf.sh"],
            ..INSTALLS_ROOT
        }],
        variables: &[("ASDF_DATA_DIR", Value::Root(0)), ("ASDF_DIR", Value::ShownPath)],
    },
    Toolchain {
        name: "homebrew",
        language: "homebrew",
        // Not `etc` and `var`, which are its services'.
        roots: &[Root {
            variable: Some("HOMEBREW_PREFIX"),
            defaults: &["/home/linuxbrew/.linuxbrew", "~/.linuxbrew"],
            shown: &["bin", "sbin", "lib", "libexec", "include", "share", "opt", "Cellar"],
            ..NESTED_ROOT
        }],
        variables: &[("HOMEBREW_PREFIX", Value::Root(0)), ("HOMEBREW_CELLAR", Value::ShownPath)],
    },
    Toolchain {
        name: "opt",
        language: "opt",
        roots: &[Root {
            defaults: &["/opt/*"],
            shown: &[
                "bin", "sbin", "lib", "lib64", "libexec", "include", "share", "jmods", "jre",
                "legal", "release",
            ],
            ..PLAIN_ROOT
        }],
        variables: &[("JAVA_HOME", Value::ShownPath), ("MAVEN_HOME", Value::ShownPath)],
    },
];
