# Ruby 3.3: sockets, pipes, files and forked children with large strings.
# shellcheck shell=bash
packages="ruby"
drive() { client ruby "$kit/tool.rb"; }
