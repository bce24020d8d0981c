-- Run once, when the cluster is made. Each service has a database of its own: two that keep their version in a table
-- of the same name, as MLflow and Optuna do, refuse to share one.
CREATE DATABASE prefect;
CREATE DATABASE mlflow;
CREATE DATABASE optuna;
CREATE DATABASE serving;
