;; Makes a command of Ruby as it is published for other hosts: initialises it, and has it load the script
;; that the variable SCRIPT names.
(module
  (import "ruby" "memory" (memory 1))
  (import "ruby" "_initialize" (func $initialize))
  (import "ruby" "cabi_realloc" (func $realloc (param i32 i32 i32 i32) (result i32)))
  (import "ruby" "ruby-init: func(args: list<string>) -> ()" (func $init (param i32 i32)))
  (import "ruby" "ruby-init-loadpath: func() -> ()" (func $loadpath))
  (import "ruby" "rb-eval-string-protect: func(str: string) -> tuple<handle<rb-abi-value>, s32>"
    (func $eval (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))

  ;; A string of up to eight bytes, with the zero that Ruby's C code wants.
  (func $word (param $text i64) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (call $realloc (i32.const 0) (i32.const 0) (i32.const 8) (i32.const 16)))
    (i64.store (local.get $at) (local.get $text))
    (i64.store offset=8 (local.get $at) (i64.const 0))
    (local.get $at))

  (func $argument (param $list i32) (param $number i32) (param $text i64) (param $size i32)
    (local $at i32)
    (local.set $at (i32.add (local.get $list) (i32.shl (local.get $number) (i32.const 3))))
    (i32.store (local.get $at) (call $word (local.get $text) (local.get $size)))
    ;; The zero is part of it.
    (i32.store offset=4 (local.get $at) (i32.add (local.get $size) (i32.const 1))))

  (func (export "_start")
    (local $list i32) (local $code i32)
    (call $initialize)
    (local.set $list (call $realloc (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 24)))
    (call $argument (local.get $list) (i32.const 0) (i64.const 0x79627572) (i32.const 4))        ;; ruby
    (call $argument (local.get $list) (i32.const 1) (i64.const 0x382d465455452d) (i32.const 7))  ;; -EUTF-8
    (call $argument (local.get $list) (i32.const 2) (i64.const 0x303d5f652d) (i32.const 5))      ;; -e_=0
    (call $init (local.get $list) (i32.const 3))
    (call $loadpath)
    ;; load(ENV["SCRIPT"])
    (local.set $code (call $realloc (i32.const 0) (i32.const 0) (i32.const 8) (i32.const 24)))
    (i64.store (local.get $code) (i64.const 0x564e452864616f6c))
    (i64.store offset=8 (local.get $code) (i64.const 0x545049524353225b))
    (i64.store offset=16 (local.get $code) (i64.const 0x295d22))
    (call $exit (i32.ne (i32.load offset=4 (call $eval (local.get $code) (i32.const 20))) (i32.const 0)))))
