# Large strings by sockets, pipes, files and children; prints digests.
require "socket"
require "digest"
require "open3"
require "zlib"
data = Random.new(1).bytes(3_000_000)
server = TCPServer.new("127.0.0.1", 0)
thread = Thread.new { 8.times { client = server.accept; IO.copy_stream(client, client); client.close } }
8.times do |round|
  socket = TCPSocket.new("127.0.0.1", server.addr[1])
  sender = Thread.new { socket.write(data.byteslice(0, 3_000_000 - round * 100_000)); socket.close_write }
  puts "tcp #{Digest::SHA256.hexdigest(socket.read)}"
  sender.join
end
thread.join
4.times do
  reader, writer = IO.pipe
  child = fork { reader.close; writer.write(data.reverse); writer.close; exit!(3) }
  writer.close
  puts "pipe #{Digest::SHA256.hexdigest(reader.read)}"
  puts Process.wait2(child)[1].exitstatus
end
puts Digest::SHA256.hexdigest(Open3.capture2("cat", stdin_data: data)[0])
File.binwrite("copy", data)
File.open("copy", "r+b") { |file| file.seek(1000); file.write(data); file.fsync }
puts Digest::SHA256.file("copy").hexdigest
buffer = String.new(capacity: 1 << 20)
sum = Digest::SHA256.new
File.open("copy", "rb") { |file| sum << buffer while file.readpartial(1 << 20, buffer) rescue EOFError }
puts sum.hexdigest
puts Digest::SHA256.hexdigest(Zlib.inflate(Zlib.deflate(data + data.reverse)))
