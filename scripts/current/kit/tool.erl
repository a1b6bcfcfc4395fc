%% Large binaries over TCP and through files; prints digests.
-module(tool).
-export([main/0]).

digest(Data) -> binary:encode_hex(crypto_less(Data)).
crypto_less(Data) -> erlang:md5(Data).

main() ->
    rand:seed(exsss, 1),
    Data = rand:bytes(3000000),
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {buffer, 1048576}, {ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Listener),
    Self = self(),
    lists:foreach(fun(Round) ->
        spawn_link(fun() ->
            {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
            ok = gen_tcp:send(Socket, binary:part(Data, 0, 3000000 - Round * 1000)),
            gen_tcp:close(Socket)
        end),
        {ok, Socket} = gen_tcp:accept(Listener),
        {ok, Got} = gen_tcp:recv(Socket, 3000000 - Round * 1000),
        gen_tcp:close(Socket),
        io:format("~s~n", [digest(Got)])
    end, lists:seq(1, 20)),
    lists:foreach(fun(Round) ->
        spawn_link(fun() -> Self ! {Round, binary:copy(Data, 2)} end),
        receive {Round, Got} -> io:format("~s~n", [digest(Got)]) end
    end, lists:seq(1, 5)),
    ok = file:write_file("copy", [Data, Data]),
    {ok, Back} = file:read_file("copy"),
    io:format("~s ~p~n", [digest(Back), byte_size(zlib:uncompress(zlib:compress(Back)))]),
    Command = erlang:open_port({spawn, "cat copy"}, [binary, exit_status, stream]),
    io:format("~s~n", [digest(collect(Command, []))]).

collect(Port, Parts) ->
    receive
        {Port, {data, Part}} -> collect(Port, [Part | Parts]);
        {Port, {exit_status, 0}} -> lists:reverse(Parts)
    end.
