require "open3"
require "tempfile"
require "words"

raise "words are not counted" unless Words.count("one two") == 2

out, status = Open3.capture2(RbConfig.ruby, "-Ilib", "-rwords", "-e", "puts Words.count(STDIN.read)", stdin_data: "one two three")
raise "the program does not count: #{out}" unless status.success? && out == "3\n"

Tempfile.create { |file| raise "no temporary file" unless File.exist?(file.path) }
puts "ok"
