# RabbitMQ 4 by its management-free core: started, queues of large messages by AMQP.
# shellcheck shell=bash
packages="rabbitmq-server python3-pika"
start() {
    mkdir -p mq && chown rabbitmq mq && install -d -o rabbitmq /var/log/rabbitmq /var/lib/rabbitmq
    export RABBITMQ_MNESIA_BASE=/room/data/mq RABBITMQ_LOGS=- RABBITMQ_NODENAME=rabbit@localhost HOME=/var/lib/rabbitmq
    serve_as rabbitmq rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server
    await listens 5672
}
drive() { client python3 "$kit/amqp.py"; }
