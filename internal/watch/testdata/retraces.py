"""A function of TensorFlow is traced again in each step, since its second argument is a Python number."""
import tensorflow as tf

weights = tf.Variable(tf.ones((64, 64)))
optimizer = tf.keras.optimizers.SGD()


@tf.function
def train(x, step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2) * (1.0 + 0 * step)
    optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights]))
    return loss


for i in range(80):
    train(tf.ones((8, 64)), i)
